//! The running scope: resources that stay open across turns.

use std::{fmt, sync::Arc};

use bub_tape::TapeStore;

use crate::{
    BoxFuture,
    environment::Environments,
    error::Result,
    framework::Framework,
    hooks::{
        guard,
        point::{ProvideLifespan, ProvideSteeringInbox, ProvideTapeStore},
    },
    steering::SteeringInbox,
};

/// A resource that must be closed when the running scope ends.
pub trait ScopeGuard: Send + Sync + 'static {
    /// Closes the resource.
    fn close(self: Box<Self>) -> BoxFuture<'static, Result<()>>;
}

/// A value that a plugin provides for a running scope, with an optional guard that is closed when the scope ends.
pub struct Provided<T: ?Sized> {
    value: Arc<T>,
    guard: Option<Box<dyn ScopeGuard>>,
}

impl<T: ?Sized> Provided<T> {
    /// Creates a value that needs no closing.
    pub fn new(value: Arc<T>) -> Self {
        Self { value, guard: None }
    }

    /// Creates a value whose guard is closed when the scope ends.
    pub fn with_guard(value: Arc<T>, guard: impl ScopeGuard) -> Self {
        Self {
            value,
            guard: Some(Box::new(guard)),
        }
    }

    /// Returns the value, and adds its guard to `guards`.
    fn split(self, guards: &mut Vec<Box<dyn ScopeGuard>>) -> Arc<T> {
        guards.extend(self.guard);
        self.value
    }
}

/// The resources of an open scope.
pub(crate) struct ScopeState {
    pub(crate) tape_store: Option<Arc<dyn TapeStore>>,
    pub(crate) steering_inbox: Option<Arc<dyn SteeringInbox>>,
    pub(crate) environments: Environments,
}

/// An open running scope: resources that stay open across turns, such as the tape store.
///
/// Close it with [`RunningScope::close`]. Dropping it ends the scope without closing its guards.
#[must_use = "the scope ends when this is dropped"]
pub struct RunningScope {
    framework: Framework,
    scope: Arc<ScopeState>,
    guards: Vec<Box<dyn ScopeGuard>>,
}

impl Framework {
    /// Opens a running scope and asks plugins for lifespans, the tape store and the steering inbox. If several scopes are open,
    /// the last one is active.
    ///
    /// # Errors
    ///
    /// Fails if a plugin fails. Resources that were opened before the failure are closed.
    pub async fn open_scope(&self) -> Result<RunningScope> {
        let mut guards = Vec::new();
        match self.open_resources(&mut guards) {
            Ok(scope) => {
                let scope = Arc::new(scope);
                self.enter_scope(Arc::clone(&scope));
                Ok(RunningScope {
                    framework: self.clone(),
                    scope,
                    guards,
                })
            }
            Err(error) => {
                close_all(guards)
                    .await
                    .unwrap_or_else(|error| tracing::error!(%error, "scope.close_failed"));
                Err(error)
            }
        }
    }

    /// Runs `work` in a running scope, and closes the scope even if `work` fails.
    ///
    /// # Errors
    ///
    /// Returns the error of opening the scope, of `work`, or of closing the scope, whichever occurs first.
    pub async fn run_scoped<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let running = self.open_scope().await?;
        let outcome = work.await;
        let closed = running.close().await;
        let value = outcome?;
        closed?;
        Ok(value)
    }

    fn open_resources(&self, guards: &mut Vec<Box<dyn ScopeGuard>>) -> Result<ScopeState> {
        let lifespans = self.hooks().call_all_sync::<ProvideLifespan>(())?;
        guards.extend(lifespans.into_iter().flatten());
        let store = self.hooks().call_first_sync::<ProvideTapeStore>(())?;
        let tape_store = store.map(|provided| provided.split(guards));
        let inbox = self.hooks().call_first_sync::<ProvideSteeringInbox>(())?;
        Ok(ScopeState {
            tape_store,
            steering_inbox: inbox.map(|provided| provided.split(guards)),
            environments: Environments::default(),
        })
    }
}

impl RunningScope {
    /// Ends the scope. Closes the environments of sessions, then all guards in reverse order.
    ///
    /// # Errors
    ///
    /// Returns the first failure, after all guards were closed.
    pub async fn close(mut self) -> Result<()> {
        let guards = std::mem::take(&mut self.guards);
        let scope = Arc::clone(&self.scope);
        drop(self);
        scope.environments.close_all().await;
        close_all(guards).await
    }
}

impl Drop for RunningScope {
    fn drop(&mut self) {
        self.framework.leave_scope(&self.scope);
        if !self.guards.is_empty() {
            tracing::warn!(guards = self.guards.len(), "scope.dropped_unclosed");
        }
    }
}

async fn close_all(guards: Vec<Box<dyn ScopeGuard>>) -> Result<()> {
    let mut outcome = Ok(());
    for guard in guards.into_iter().rev() {
        let closed = guard::run_with_timeout(|| guard.close()).await.flatten();
        if outcome.is_ok() {
            outcome = closed;
        } else if let Err(error) = closed {
            tracing::error!(%error, "scope.close_failed");
        }
    }
    outcome
}

impl fmt::Debug for RunningScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunningScope(guards: {})", self.guards.len())
    }
}

impl<T: ?Sized> fmt::Debug for Provided<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Provided(guard: {})", self.guard.is_some())
    }
}
