//! Converts panics and timeouts in plugin code into errors.
//!
//! The kernel runs plugin code through this module: hooks, the streams they return, tools, stream events of channels,
//! lifespans and scope guards.

use std::{
    any::Any,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    task::Poll,
    time::Duration,
};

use tokio::{runtime::Handle, time::sleep};

use crate::{
    BoxFuture,
    error::{Error, ErrorKind, Result},
};

/// Runs synchronous code and converts a panic into an error.
///
/// Unwind safety is asserted: the shared data that a plugin can reach (state, turn) is consistent after each operation.
pub(crate) fn catch_panic<T>(code: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|panic| panic_error(panic.as_ref()))
}

/// Timeout for asynchronous plugin code, except for hooks that run a model or request an approval. It is long because
/// other hooks may ask a user, too.
pub const HOOK_TIMEOUT: Duration = Duration::from_mins(5);

/// Runs asynchronous code with [`HOOK_TIMEOUT`]. Converts a timeout, or a panic while the future is created or polled,
/// into an error.
pub(crate) async fn run_with_timeout<'a, T>(make: impl FnOnce() -> BoxFuture<'a, T>) -> Result<T> {
    run_with_limit(Some(HOOK_TIMEOUT), make).await
}

/// Runs asynchronous code with a time limit, or without one for `None`. Converts a timeout or a panic into an error.
pub(crate) async fn run_with_limit<'a, T>(
    mut limit: Option<Duration>,
    make: impl FnOnce() -> BoxFuture<'a, T>,
) -> Result<T> {
    let mut future = catch_panic(make)?;
    let mut timer = None;
    poll_fn(|cx| {
        if let Poll::Ready(value) = catch_panic(|| future.as_mut().poll(cx))? {
            return Poll::Ready(Ok(value));
        }
        let Some(duration) = limit else {
            return Poll::Pending;
        };
        // The timer is created when the future is first pending: a future that is ready at once needs none.
        if timer.is_none() && Handle::try_current().is_ok() {
            timer = catch_panic(|| Box::pin(sleep(duration))).ok();
        }
        let Some(timer) = &mut timer else {
            // Without a runtime that has timers, the code runs without a limit.
            limit = None;
            return Poll::Pending;
        };
        timer
            .as_mut()
            .poll(cx)
            .map(|()| Err(timeout_error(duration)))
    })
    .await
}

fn timeout_error(limit: Duration) -> Error {
    let seconds = limit.as_secs();
    Error::new(
        ErrorKind::Temporary,
        format!("plugin code timed out: no answer within {seconds} s; try again"),
    )
}

/// Returns the error of a panic, with the message of the panic.
pub(crate) fn panic_error(panic: &(dyn Any + Send)) -> Error {
    Error::unknown(format!(
        "plugin code panicked: {}; see the log",
        panic_text(panic)
    ))
}

/// Returns the message of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
