//! A panic in plugin code becomes an error.
//!
//! Every place where the kernel runs code of a plugin goes through here: hooks, the streams they
//! return, channels, lifespans, scope guards.

use std::{
    any::Any,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

use crate::{
    BoxFuture,
    error::{Error, Result},
};

/// Runs code that does not wait.
///
/// Unwind safety is asserted: the shared structures a plugin can reach (state, slots) are left
/// consistent between any two of their operations.
pub(crate) fn catch<T>(code: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|panic| explain(panic.as_ref()))
}

/// Runs code that waits: making the future is guarded, and every poll of it.
pub(crate) async fn run<'a, T>(make: impl FnOnce() -> BoxFuture<'a, T>) -> Result<T> {
    Guarded(catch(make)?).await
}

struct Guarded<'a, T>(BoxFuture<'a, T>);

impl<T> Future for Guarded<'_, T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match catch(|| self.0.as_mut().poll(cx)) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

/// The error of a panic, with the text the panic carried.
fn explain(panic: &(dyn Any + Send)) -> Error {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Error::unknown(format!("plugin code panicked: {}", text.unwrap_or("no message")))
}
