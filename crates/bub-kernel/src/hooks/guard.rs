//! Converts panics and timeouts in plugin code into errors.
//!
//! The kernel runs all plugin code through this module: hooks, the streams they return, channels, lifespans and scope
//! guards.

use std::{
    any::Any,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    time::{Sleep, sleep},
};

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

/// Timeout for asynchronous plugin code, except for hooks that run a model. It is long because a hook may ask a user.
pub const HOOK_TIMEOUT: Duration = Duration::from_mins(5);

/// Runs asynchronous code with [`HOOK_TIMEOUT`]. Converts a timeout, or a panic while the future is created or polled,
/// into an error.
pub(crate) async fn run_with_timeout<'a, T>(make: impl FnOnce() -> BoxFuture<'a, T>) -> Result<T> {
    run_with_limit(Some(HOOK_TIMEOUT), make).await
}

/// Runs asynchronous code with a time limit, or without one for `None`. Converts a timeout or a panic into an error.
pub(crate) async fn run_with_limit<'a, T>(
    limit: Option<Duration>,
    make: impl FnOnce() -> BoxFuture<'a, T>,
) -> Result<T> {
    GuardedFuture {
        future: catch_panic(make)?,
        limit,
        timer: None,
    }
    .await
}

struct GuardedFuture<'a, T> {
    future: BoxFuture<'a, T>,
    limit: Option<Duration>,
    /// Created when the future is first pending, so that a future that is ready at once needs no timer.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<T> GuardedFuture<'_, T> {
    fn poll_timeout(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(limit) = self.limit else {
            return false;
        };
        if self.timer.is_none() {
            // Without a runtime that has timers, the code runs without a limit.
            self.timer = Handle::try_current()
                .ok()
                .and_then(|_| catch_panic(|| Box::pin(sleep(limit))).ok());
        }
        let Some(timer) = &mut self.timer else {
            self.limit = None;
            return false;
        };
        timer.as_mut().poll(cx).is_ready()
    }
}

impl<T> Future for GuardedFuture<'_, T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match catch_panic(|| self.future.as_mut().poll(cx)) {
            Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
            Ok(Poll::Pending) if self.poll_timeout(cx) => {
                Poll::Ready(Err(timeout_error(self.limit)))
            }
            Ok(Poll::Pending) => Poll::Pending,
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

fn timeout_error(limit: Option<Duration>) -> Error {
    let seconds = limit.unwrap_or_default().as_secs();
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
