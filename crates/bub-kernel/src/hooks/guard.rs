//! A panic in plugin code becomes an error, and so does waiting for ever.
//!
//! Every place where the kernel runs code of a plugin goes through here: hooks, the streams they
//! return, channels, lifespans, scope guards.

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

/// Runs code that does not wait.
///
/// Unwind safety is asserted: the shared structures a plugin can reach (state, turn) are left
/// consistent between any two of their operations.
pub(crate) fn catch<T>(code: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|panic| panic_error(panic.as_ref()))
}

/// How long plugin code may make others wait, unless it runs a model. A person may be asked in a
/// hook, so it is generous.
pub const HOOK_TIMEOUT: Duration = Duration::from_mins(5);

/// Runs code that waits: making the future is guarded, and every poll of it, and the time it takes.
pub(crate) async fn run<'a, T>(make: impl FnOnce() -> BoxFuture<'a, T>) -> Result<T> {
    run_within(Some(HOOK_TIMEOUT), make).await
}

/// The same with a time limit of its own, or none.
pub(crate) async fn run_within<'a, T>(
    limit: Option<Duration>,
    make: impl FnOnce() -> BoxFuture<'a, T>,
) -> Result<T> {
    GuardedFuture {
        future: catch(make)?,
        limit,
        timer: None,
    }
    .await
}

struct GuardedFuture<'a, T> {
    future: BoxFuture<'a, T>,
    limit: Option<Duration>,
    /// Made when the code first waits: what is ready at once costs no timer.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<T> GuardedFuture<'_, T> {
    fn poll_timeout(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(limit) = self.limit else {
            return false;
        };
        if self.timer.is_none() {
            // Without a runtime that has timers there is no limit; the code runs all the same.
            self.timer = Handle::try_current()
                .ok()
                .and_then(|_| catch(|| Box::pin(sleep(limit))).ok());
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
        match catch(|| self.future.as_mut().poll(cx)) {
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
        format!("no answer within {seconds} s"),
    )
}

/// The error of a panic, with the text the panic carried.
pub(crate) fn panic_error(panic: &(dyn Any + Send)) -> Error {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Error::unknown(format!(
        "plugin code panicked: {}",
        text.unwrap_or("no message")
    ))
}
