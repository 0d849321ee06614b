//! One plugin's implementation of one hook.

use std::{fmt, sync::Arc, time::Duration};

use super::{Chained, HookPoint, HookReturn, HookSet, Next, guard};
use crate::{
    BoxFuture,
    error::{Error, Result},
};

/// One call of an implementation: the arguments, and the position of the implementation in the order of calls.
pub struct HookCall<'a, P: HookPoint> {
    /// The arguments.
    pub args: P::Args<'a>,
    pub(super) set: &'a HookSet,
    pub(super) position: usize,
}

impl<'a, P: HookPoint> HookCall<'a, P> {
    pub(super) fn new(set: &'a HookSet, position: usize, args: P::Args<'a>) -> Self {
        Self {
            args,
            set,
            position,
        }
    }

    /// Returns the position of the implementation. Implementations with a higher position run earlier.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Returns the plugins that run after the plugin of this call.
    pub fn next(self) -> Next<'a, P>
    where
        P: Chained,
    {
        Next(self)
    }
}

impl<P: HookPoint> Clone for HookCall<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: HookPoint> Copy for HookCall<'_, P> {}

/// A synchronous implementation.
pub trait SyncHook<P: HookPoint>: Send + Sync + 'static {
    /// Runs the implementation.
    fn call(&self, call: HookCall<'_, P>) -> HookReturn<P::Output>;
}

/// An asynchronous implementation.
pub trait AsyncHook<P: HookPoint>: Send + Sync + 'static {
    /// Returns a future that runs the implementation.
    fn call<'a>(&'a self, call: HookCall<'a, P>) -> BoxFuture<'a, HookReturn<P::Output>>;
}

/// The code of an implementation. Synchronous code needs no boxed future.
pub(super) enum HookFn<P: HookPoint> {
    Sync(Box<dyn SyncHook<P>>),
    Async(Box<dyn AsyncHook<P>>),
}

/// One plugin's implementation of one hook.
pub struct Implementation<P: HookPoint> {
    body: HookFn<P>,
    plugin: Arc<str>,
    registration_index: usize,
    pub(super) options: HookOptions,
}

/// When an implementation runs, relative to those of other plugins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::EnumString)]
#[strum(serialize_all = "snake_case")]
pub enum HookOrder {
    /// Before all others.
    First,
    /// Before those of plugins that were registered earlier.
    #[default]
    Registration,
    /// After all others, also after the built-in plugin.
    Last,
}

impl HookOrder {
    /// Returns the position of an implementation of the plugin with this registration index.
    fn position(self, registration_index: usize) -> usize {
        // No program has as many plugins.
        const MIDDLE: usize = 1 << 24;
        match self {
            Self::First => MIDDLE * 2 + registration_index,
            Self::Registration => MIDDLE + registration_index,
            Self::Last => MIDDLE.saturating_sub(registration_index + 1),
        }
    }
}

/// How an implementation is called.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct HookOptions {
    /// When the implementation runs.
    pub order: HookOrder,
    /// A time limit that replaces a shorter one of the hook.
    pub time_limit: Option<Duration>,
    /// Whether a failure of `before_tool_call` is ignored instead of denying the tool call.
    pub observe_only: bool,
}

impl<P: HookPoint> Implementation<P> {
    pub(super) fn new(body: HookFn<P>) -> Self {
        Self {
            body,
            plugin: Arc::from(""),
            registration_index: 0,
            options: HookOptions::default(),
        }
    }

    pub(super) fn set_plugin(&mut self, index: usize, plugin: &Arc<str>) {
        self.plugin = Arc::clone(plugin);
        self.registration_index = index;
    }

    /// Returns the name of the plugin.
    pub fn plugin(&self) -> Arc<str> {
        Arc::clone(&self.plugin)
    }

    /// Returns the plugin's index in the registration order.
    pub fn registration_index(&self) -> usize {
        self.registration_index
    }

    /// Returns the position in the order of calls. Implementations with a higher position run earlier.
    pub(super) fn position(&self) -> usize {
        self.options.order.position(self.registration_index)
    }

    /// Returns whether a failure of this implementation is ignored instead of denying the tool call.
    pub fn is_observe_only(&self) -> bool {
        self.options.observe_only
    }

    /// Calls the implementation and waits for the result.
    pub(crate) async fn call<'a>(
        &'a self,
        set: &'a HookSet,
        args: P::Args<'a>,
    ) -> Result<Option<P::Output>> {
        let call = HookCall::new(set, self.position(), args);
        let outcome = match &self.body {
            HookFn::Sync(hook) => guard::catch_panic(|| hook.call(call)),
            HookFn::Async(hook) => {
                // A hook without a time limit, such as a model, has none.
                let own_limit = self.options.time_limit.unwrap_or_default();
                let limit = P::SPEC.time_limit.map(|limit| limit.max(own_limit));
                guard::run_with_limit(limit, || hook.call(call)).await
            }
        };
        self.convert_result(set, outcome)
    }

    /// Calls the implementation if it is synchronous. Otherwise logs a warning and returns `None`.
    pub(crate) fn call_sync<'a>(
        &'a self,
        set: &'a HookSet,
        args: P::Args<'a>,
    ) -> Option<Result<Option<P::Output>>> {
        let call = HookCall::new(set, self.position(), args);
        match &self.body {
            HookFn::Sync(hook) => {
                Some(self.convert_result(set, guard::catch_panic(|| hook.call(call))))
            }
            HookFn::Async(_) => {
                let (hook, adapter) = (P::SPEC.name, &self.plugin);
                tracing::warn!(%hook, %adapter, "hook.async_not_supported");
                None
            }
        }
    }

    /// Returns the result of the implementation. An error, panic or timeout becomes one [`Error`] that names the hook
    /// and the plugin.
    fn convert_result(
        &self,
        set: &HookSet,
        outcome: Result<HookReturn<P::Output>>,
    ) -> Result<Option<P::Output>> {
        let error = match outcome {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => Error::from_boxed(error),
            Err(panic) => panic,
        };
        let error = error.with_origin(P::SPEC.name, &self.plugin);
        // The plugin may have passed on the error of the next one.
        let plugin = error.origin().map_or(&self.plugin, |origin| &origin.plugin);
        set.record_failure(plugin, &error);
        Err(error)
    }
}

impl<P: HookPoint> fmt::Debug for Implementation<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", P::SPEC.name, self.plugin)
    }
}
