//! Registering implementations and calling them.

use std::{fmt, sync::Arc};

use super::{
    AsyncHook, HookCall, HookPoint, HookSet, HookSpec, Implementation, Next, SyncHook, point,
};
use crate::error::Result;

impl HookSet {
    /// Adds a synchronous implementation.
    pub fn add_sync<P: HookPoint>(&mut self, hook: impl SyncHook<P>) {
        P::implementations_mut(self).push(Implementation::new_sync(hook));
    }

    /// Adds an asynchronous implementation.
    pub fn add_async<P: HookPoint>(&mut self, hook: impl AsyncHook<P>) {
        P::implementations_mut(self).push(Implementation::new_async(hook));
    }

    /// Makes the `before_tool_call` added last observe-only: when it fails, the call goes on.
    pub fn observe_only(&mut self) {
        if let Some(last) = point::BeforeToolCall::implementations_mut(self).last_mut() {
            last.set_observe_only();
        }
    }

    /// The first result that is not `None`, latest registered plugin first.
    pub async fn call_first<'a, P: HookPoint>(
        &'a self,
        args: P::Args<'a>,
    ) -> Result<Option<P::Output>> {
        for found in P::implementations(self).iter().rev() {
            if let Some(value) = found.call(self, args).await? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Every result, `None` included, latest registered plugin first.
    pub async fn call_many<'a, P: HookPoint>(
        &'a self,
        args: P::Args<'a>,
    ) -> Result<Vec<Option<P::Output>>> {
        let found = P::implementations(self);
        let mut results = Vec::with_capacity(found.len());
        for implementation in found.iter().rev() {
            results.push(implementation.call(self, args).await?);
        }
        Ok(results)
    }

    /// [`Self::call_first`] without waiting: asynchronous implementations are skipped with a warning.
    pub fn call_first_sync<'a, P: HookPoint>(
        &'a self,
        args: P::Args<'a>,
    ) -> Result<Option<P::Output>> {
        for found in P::implementations(self).iter().rev() {
            if let Some(value) = found.call_sync(self, args).transpose()?.flatten() {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// [`Self::call_many`] without waiting: asynchronous implementations are skipped with a warning.
    pub fn call_many_sync<'a, P: HookPoint>(
        &'a self,
        args: P::Args<'a>,
    ) -> Result<Vec<Option<P::Output>>> {
        let found = P::implementations(self).iter().rev();
        found
            .filter_map(|implementation| implementation.call_sync(self, args))
            .collect()
    }

    /// Calls one plugin alone. `place` is that of [`HookCall::registration_index`]; `chain` has the implementations below it, for `next`.
    pub async fn call_one<'a, P: HookPoint>(
        &'a self,
        place: usize,
        args: P::Args<'a>,
        chain: &'a Self,
    ) -> Result<Option<P::Output>> {
        match P::implementations(self)
            .iter()
            .find(|implementation| implementation.registration_index() == place)
        {
            Some(implementation) => implementation.call(chain, args).await,
            None => Ok(None),
        }
    }

    /// The chain below a place, for a call that outlives the one it was asked in.
    pub fn chain_below<'a, P: HookPoint>(&'a self, place: usize, args: P::Args<'a>) -> Next<'a, P> {
        Next(HookCall {
            args,
            set: self,
            plugin: place,
        })
    }

    /// Whether any plugin implements the hook.
    pub fn is_implemented<P: HookPoint>(&self) -> bool {
        !P::implementations(self).is_empty()
    }

    /// The hooks that have implementations, sorted by name, each with its plugins in registration
    /// order (which is the reverse of the order in which they run).
    pub fn report(&self) -> Vec<(&'static HookSpec, Vec<Arc<str>>)> {
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
        f.debug_map()
            .entries(
                self.report()
                    .iter()
                    .map(|(spec, plugins)| (spec.name, plugins)),
            )
            .finish()
    }
}
