//! A panic in a hook becomes that hook's error.

use std::{
    any::Any,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

use super::HookReturn;
use crate::{BoxFuture, error::Error};

/// Runs a synchronous hook.
///
/// Unwind safety is asserted: the shared structures a hook can reach (state, slots) are left
/// consistent between any two of their operations.
pub(super) fn sync<T>(hook: impl FnOnce() -> HookReturn<T>) -> HookReturn<T> {
    catch_unwind(AssertUnwindSafe(hook)).unwrap_or_else(|panic| Err(explain(panic.as_ref()).into()))
}

/// Runs an asynchronous hook: every poll is guarded.
pub(super) fn future<T>(hook: BoxFuture<'_, HookReturn<T>>) -> Guarded<'_, T> {
    Guarded(hook)
}

pub(super) struct Guarded<'a, T>(BoxFuture<'a, HookReturn<T>>);

impl<T> Future for Guarded<'_, T> {
    type Output = HookReturn<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx)));
        polled.unwrap_or_else(|panic| Poll::Ready(Err(explain(panic.as_ref()).into())))
    }
}

/// The error of a panic, with the text the panic carried.
pub(crate) fn explain(panic: &(dyn Any + Send)) -> Error {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Error::unknown(format!("plugin code panicked: {}", text.unwrap_or("no message")))
}
