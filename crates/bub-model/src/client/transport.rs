//! What went wrong below HTTP, in words that people can act on.

use std::error::Error as StdError;
use std::io;

use crate::error::{Action, ErrorKind, ModelError};

/// A call that never got an answer. `server` is the address without anything secret.
pub(super) fn unreachable(error: &reqwest::Error, server: &str) -> ModelError {
    if error.is_timeout() {
        return ModelError::new(
            ErrorKind::Timeout,
            Action::Retry,
            format!("no connection to {server} in time"),
        );
    }
    if error.is_builder() || error.is_request() && find::<io::Error>(error).is_none() && !error.is_connect() {
        let message = format!("the request to {server} could not be sent: {}", innermost(error));
        return ModelError::new(ErrorKind::Transport, Action::Retry, message);
    }
    if let Some(tls) = find::<rustls::Error>(error) {
        let message = format!("no secure connection to {server}: {tls}");
        return ModelError::new(ErrorKind::Transport, Action::NextModel, message);
    }
    if find::<io::Error>(error).is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        // Nobody listens there. Waiting half a second will not change that.
        let message = format!("nothing answers at {server}: is the server running?");
        return ModelError::new(ErrorKind::Transport, Action::NextModel, message);
    }
    let message = format!("no answer from {server}: {}", innermost(error));
    ModelError::new(ErrorKind::Transport, Action::Retry, message)
}

/// A call whose answer broke off.
pub(super) fn broken(error: &reqwest::Error) -> ModelError {
    ModelError::truncated(format!("the connection broke in the middle of the answer: {}", innermost(error)))
}

/// The call was cancelled by its owner.
pub(crate) fn cancelled() -> ModelError {
    ModelError::new(ErrorKind::Cancelled, Action::GiveUp, "the call was cancelled")
}

/// The cause at the bottom of an error. The layers above it only repeat the address.
pub(crate) fn innermost(error: &dyn StdError) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

/// The first cause of a type.
fn find<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        // An I/O error hides what it wraps from `source`.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(found) = wrapped.and_then(|wrapped| find::<E>(wrapped)) {
            return Some(found);
        }
        next = error.source();
    }
    None
}
