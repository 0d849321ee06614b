//! Calling the next plugins from an implementation.

use super::{HookCall, HookPoint, Implementation};
use crate::{BoxFuture, error::Result};

/// The plugins that run after the current plugin: those registered before it, unless a plugin asked for another order.
///
/// An implementation of a first-result hook can declare an argument `next` of this type. The implementation can then
/// wrap the result of the next plugins, or call them with other arguments:
///
/// ```
/// use bub_kernel::{Prompt, Result, hooks, hooks::{Next, point}};
///
/// struct Polite;
///
/// #[hooks(crate = bub_kernel)]
/// impl Polite {
///     async fn build_prompt(&self, next: Next<'_>) -> Result<Option<Prompt>> {
///         Ok(next.call().await?.map(|prompt| Prompt::from(format!("{}, please", prompt.text()))))
///     }
/// }
/// ```
pub struct Next<'a, P: HookPoint>(pub(super) HookCall<'a, P>);

impl<'a, P: HookPoint> Next<'a, P> {
    /// Returns the arguments that the next plugins get.
    pub fn args(&self) -> P::Args<'a> {
        self.0.args
    }

    /// Replaces the arguments that the next plugins get.
    #[must_use]
    pub fn with_args<'b>(self, args: P::Args<'b>) -> Next<'b, P>
    where
        'a: 'b,
    {
        self.0.set.next_after(self.0.position, args)
    }

    /// Returns the implementations of the next plugins, in the order in which they run.
    pub(super) fn implementations(self) -> impl Iterator<Item = &'a Implementation<P>> {
        let all = P::implementations(self.0.set).iter().rev();
        all.filter(move |next| next.position() < self.0.position)
    }

    pub(super) async fn call_first(self) -> Result<Option<P::Output>> {
        for implementation in self.implementations() {
            if let Some(value) = implementation.call(self.0.set, self.0.args).await? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    pub(super) fn call_first_sync(self) -> Result<Option<P::Output>> {
        for implementation in self.implementations() {
            let result = implementation.call_sync(self.0.set, self.0.args);
            if let Some(value) = result.transpose()?.flatten() {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Calls the next plugins until one returns a result that is not `None`, and returns that result. Returns `None` if
    /// no plugin has one.
    pub fn call(self) -> BoxFuture<'a, Result<Option<P::Output>>>
    where
        P: Chained,
    {
        P::call_next(self)
    }

    /// Calls the synchronous implementations of the next plugins until one returns a result that is not `None`, and
    /// returns that result. Skips asynchronous implementations with a warning.
    pub fn call_sync(self) -> Result<Option<P::Output>>
    where
        P: ChainedSync,
    {
        self.call_first_sync()
    }
}

impl<P: HookPoint> Clone for Next<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: HookPoint> Copy for Next<'_, P> {}

/// Hooks whose implementations can call the next plugin: first-result hooks.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no `next`: only first-result hooks can call the next plugin",
    label = "this hook calls all plugins"
)]
pub trait Chained: HookPoint {
    /// Calls the next plugins.
    fn call_next(next: Next<'_, Self>) -> BoxFuture<'_, Result<Option<Self::Output>>>;
}

/// Hooks whose implementations can call the next plugins with [`Next::call_sync`], without `await`.
#[diagnostic::on_unimplemented(
    message = "the next plugins of this hook must be awaited",
    label = "make this an `async fn` and use `next.call().await`"
)]
pub trait ChainedSync: Chained {}
