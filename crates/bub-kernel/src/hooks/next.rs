//! The chain below an implementation.

use super::{HookCall, HookPoint};
use crate::{BoxFuture, error::Result};

/// What the plugins registered before this one would answer.
///
/// A first-result hook asks for it with an argument named `next`, to wrap their answer or to ask
/// them with other arguments:
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
    /// The arguments this implementation was called with.
    pub fn args(&self) -> P::Args<'a> {
        self.0.args
    }

    /// The same chain, to be called with other arguments.
    #[must_use]
    pub fn with<'b>(self, args: P::Args<'b>) -> Next<'b, P>
    where
        'a: 'b,
    {
        Next(HookCall {
            args,
            set: self.0.set,
            plugin: self.0.plugin,
        })
    }

    pub(super) async fn first_below(self) -> Result<Option<P::Output>> {
        let HookCall { args, set, plugin } = self.0;
        for found in P::implementations(set)
            .iter()
            .rev()
            .filter(|found| found.registration_index() < plugin)
        {
            if let Some(value) = found.call(set, args).await? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Runs the chain; `None` when nobody below has an opinion.
    pub fn call(self) -> BoxFuture<'a, Result<Option<P::Output>>>
    where
        P: Chained,
    {
        P::below(self)
    }

    /// Runs the chain without waiting; asynchronous implementations are skipped with a warning.
    pub fn call_sync(self) -> Result<Option<P::Output>>
    where
        P: ChainedSync,
    {
        let HookCall { args, set, plugin } = self.0;
        for found in P::implementations(set)
            .iter()
            .rev()
            .filter(|found| found.registration_index() < plugin)
        {
            if let Some(value) = found.call_sync(set, args).transpose()?.flatten() {
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

/// Hooks in which there is a chain below: those where the first result wins.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no chain below: only first-result hooks can ask for `next`",
    label = "every implementation of this hook is called anyway"
)]
pub trait Chained: HookPoint {
    /// Runs the chain below.
    fn below(next: Next<'_, Self>) -> BoxFuture<'_, Result<Option<Self::Output>>>;
}

/// Hooks whose chain below can be run without waiting.
#[diagnostic::on_unimplemented(
    message = "the models below have to be awaited",
    label = "make this an `async fn` and use `next.call().await`"
)]
pub trait ChainedSync: Chained {}
