//! Registering and calling implementations.

use std::{fmt, sync::Arc};

use super::{
    AsyncHook, HookCall, HookOptions, HookPoint, HookSet, HookSpec, Implementation, Next, SyncHook,
    implementation::HookFn, point,
};
use crate::error::Result;

impl HookSet {
    /// Adds a synchronous implementation.
    pub fn add_sync<P: HookPoint>(&mut self, hook: impl SyncHook<P>) {
        P::implementations_mut(self).push(Implementation::new(HookFn::Sync(Box::new(hook))));
    }

    /// Adds an asynchronous implementation.
    pub fn add_async<P: HookPoint>(&mut self, hook: impl AsyncHook<P>) {
        P::implementations_mut(self).push(Implementation::new(HookFn::Async(Box::new(hook))));
    }

    /// Makes the last added implementation of `before_tool_call` observe-only: if it fails, the tool call continues.
    pub fn set_last_observe_only(&mut self) {
        if let Some(last) = point::BeforeToolCall::implementations_mut(self).last_mut() {
            last.options.observe_only = true;
        }
    }

    /// Sets how the last added implementation of a hook is called.
    pub fn set_last_options<P: HookPoint>(&mut self, options: HookOptions) {
        if let Some(last) = P::implementations_mut(self).last_mut() {
            last.options = options;
        }
    }

    /// Calls implementations until one returns a result that is not `None`. The plugin registered last runs first.
    pub async fn call_first<'a, P: HookPoint>(
        &'a self,
        args: P::Args<'a>,
    ) -> Result<Option<P::Output>> {
        // Every turn runs this loop. It needs no check of the registration index, unlike that of `Next`.
        for implementation in P::implementations(self).iter().rev() {
            if let Some(value) = implementation.call(self, args).await? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Calls all implementations and returns every result, including `None`. The plugin registered last runs first.
    pub async fn call_all<'a, P: HookPoint>(
        &'a self,
        args: P::Args<'a>,
    ) -> Result<Vec<Option<P::Output>>> {
        let implementations = P::implementations(self);
        let mut results = Vec::with_capacity(implementations.len());
        for implementation in implementations.iter().rev() {
            results.push(implementation.call(self, args).await?);
        }
        Ok(results)
    }

    /// Calls synchronous implementations until one returns a result that is not `None`. Skips asynchronous
    /// implementations with a warning.
    pub fn call_first_sync<'a, P: HookPoint>(
        &'a self,
        args: P::Args<'a>,
    ) -> Result<Option<P::Output>> {
        self.next_after::<P>(usize::MAX, args).call_first_sync()
    }

    /// Calls all synchronous implementations and returns every result, including `None`. Skips asynchronous
    /// implementations with a warning.
    pub fn call_all_sync<'a, P: HookPoint>(
        &'a self,
        args: P::Args<'a>,
    ) -> Result<Vec<Option<P::Output>>> {
        let implementations = P::implementations(self).iter().rev();
        implementations
            .filter_map(|implementation| implementation.call_sync(self, args))
            .collect()
    }

    /// Calls the implementation of the plugin with this [registration index](Implementation::registration_index). If the
    /// implementation calls `next`, the implementations in `chain` run.
    pub async fn call_plugin<'a, P: HookPoint>(
        &'a self,
        registration_index: usize,
        args: P::Args<'a>,
        chain: &'a Self,
    ) -> Result<Option<P::Output>> {
        let mut all = P::implementations(self).iter();
        match all.find(|own| own.registration_index() == registration_index) {
            Some(implementation) => implementation.call(chain, args).await,
            None => Ok(None),
        }
    }

    /// Returns the plugins that run after the implementation at this [position](HookCall::position). That
    /// implementation can call them even after its own call has ended.
    pub fn next_after<'a, P: HookPoint>(
        &'a self,
        position: usize,
        args: P::Args<'a>,
    ) -> Next<'a, P> {
        Next(HookCall::new(self, position, args))
    }

    /// Returns whether any plugin implements the hook.
    pub fn is_implemented<P: HookPoint>(&self) -> bool {
        !P::implementations(self).is_empty()
    }

    /// Returns the implemented hooks, sorted by name, each with its plugins in registration order. Plugins run in the
    /// reverse order.
    pub fn implemented_hooks(&self) -> Vec<(&'static HookSpec, Vec<Arc<str>>)> {
        let mut rows = self.implementations_by_hook();
        rows.retain(|(_, plugins)| !plugins.is_empty());
        for (_, plugins) in &mut rows {
            plugins.dedup();
        }
        rows.sort_by_key(|(spec, _)| spec.name);
        rows
    }
}

impl fmt::Debug for HookSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hooks = self.implemented_hooks();
        let entries = hooks.iter().map(|(spec, plugins)| (spec.name, plugins));
        f.debug_map().entries(entries).finish()
    }
}
