//! Calling the next plugin.

use super::{HookCall, HookPoint};
use crate::{BoxFuture, error::Result};

/// The plugins that run after the current plugin: those registered before it.
///
/// An implementation of a first-result hook can take it as the argument `next`. It can then wrap the result of the next
/// plugins, or call them with other arguments:
///
/// ```
/// use bub_kernel::{Prompt, Result, hooks, hooks::{Next, point}};
///
/// struct Polite;
///
/// #[hooks(crate = bub_kernel)]
/// impl Polite {
///     async fn build_prompt(&self, next: Next<'_, point::BuildPrompt>) -> Result<Option<Prompt>> {
///         Ok(next.call().await?.map(|prompt| Prompt::from(format!("{}, please", prompt.text()))))
///     }
/// }
/// ```
pub struct Next<'a, P: HookPoint>(pub(super) HookCall<'a, P>);

impl<'a, P: HookPoint> Next<'a, P> {
    /// Returns the arguments of the current call.
    pub fn args(&self) -> P::Args<'a> {
        self.0.args
    }

    /// Replaces the arguments that the next plugins get.
    #[must_use]
    pub fn with_args<'b>(self, args: P::Args<'b>) -> Next<'b, P>
    where
        'a: 'b,
    {
        Next(HookCall {
            args,
            set: self.0.set,
            registration_index: self.0.registration_index,
        })
    }

    pub(super) async fn call_first(self) -> Result<Option<P::Output>> {
        let HookCall {
            args,
            set,
            registration_index,
        } = self.0;
        for implementation in P::implementations(set)
            .iter()
            .rev()
            .filter(|implementation| implementation.registration_index() < registration_index)
        {
            if let Some(value) = implementation.call(set, args).await? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Calls the next plugins. Returns `None` if none of them has a result.
    pub fn call(self) -> BoxFuture<'a, Result<Option<P::Output>>>
    where
        P: Chained,
    {
        P::call_next(self)
    }

    /// Calls the next plugins without waiting. Skips asynchronous implementations with a warning.
    pub fn call_sync(self) -> Result<Option<P::Output>>
    where
        P: ChainedSync,
    {
        let HookCall {
            args,
            set,
            registration_index,
        } = self.0;
        for implementation in P::implementations(set)
            .iter()
            .rev()
            .filter(|implementation| implementation.registration_index() < registration_index)
        {
            if let Some(value) = implementation.call_sync(set, args).transpose()?.flatten() {
                return Ok(Some(value));
            }
        }
        Ok(None)
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

/// Hooks whose implementations can call the next plugin without waiting.
#[diagnostic::on_unimplemented(
    message = "the next plugins of this hook must be awaited",
    label = "make this an `async fn` and use `next.call().await`"
)]
pub trait ChainedSync: Chained {}
