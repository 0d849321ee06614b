//! The running scope: what is opened once for many turns, and closed after them.

use std::{fmt, sync::Arc};

use bub_tape::TapeStore;

use crate::{
    BoxFuture,
    error::Result,
    framework::Framework,
    hooks::{
        guard,
        point::{ProvideSteeringInbox, ProvideTapeStore},
    },
    steering::SteeringInbox,
};

/// Something to close when the scope ends.
pub trait ScopeGuard: Send + Sync + 'static {
    /// Closes it.
    fn close(self: Box<Self>) -> BoxFuture<'static, Result<()>>;
}

/// What a plugin provides for a scope, with what is to be closed after it.
pub struct Provided<T: ?Sized> {
    value: Arc<T>,
    guard: Option<Box<dyn ScopeGuard>>,
}

impl<T: ?Sized> Provided<T> {
    /// Something that needs no closing.
    pub fn new(value: Arc<T>) -> Self {
        Self { value, guard: None }
    }

    /// Something that is closed when the scope ends.
    pub fn with_guard(value: Arc<T>, guard: impl ScopeGuard) -> Self {
        Self {
            value,
            guard: Some(Box::new(guard)),
        }
    }
}

/// What is open while the framework runs.
pub(crate) struct ScopeState {
    pub(crate) tape_store: Option<Arc<dyn TapeStore>>,
    pub(crate) steering_inbox: Option<Arc<dyn SteeringInbox>>,
}

/// An open scope. Close it with [`RunningScope::close`]; dropping it only takes it out of use.
#[must_use = "the scope ends when this is dropped"]
pub struct RunningScope {
    framework: Framework,
    scope: Arc<ScopeState>,
    guards: Vec<Box<dyn ScopeGuard>>,
}

impl Framework {
    /// Opens the running scope: asks once for the tape store and the steering inbox. Of several open
    /// scopes the one opened last is in use.
    ///
    /// When a second one cannot be opened, what the first needed closed is closed again.
    pub async fn running(&self) -> Result<RunningScope> {
        let mut guards = Vec::new();
        match self.open_scope(&mut guards) {
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

    /// Runs `work` inside a running scope that is closed afterwards, whatever `work` came to.
    pub async fn run_scoped<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let running = self.running().await?;
        let outcome = work.await;
        let closed = running.close().await;
        let value = outcome?;
        closed?;
        Ok(value)
    }

    fn open_scope(&self, guards: &mut Vec<Box<dyn ScopeGuard>>) -> Result<ScopeState> {
        let mut keep = |guard: Option<Box<dyn ScopeGuard>>| guards.extend(guard);
        let tape_store = self
            .hooks()
            .call_first_sync::<ProvideTapeStore>(())?
            .map(|provided| {
                keep(provided.guard);
                provided.value
            });
        let steering_inbox = self
            .hooks()
            .call_first_sync::<ProvideSteeringInbox>(())?
            .map(|provided| {
                keep(provided.guard);
                provided.value
            });
        Ok(ScopeState {
            tape_store,
            steering_inbox,
        })
    }
}

impl RunningScope {
    /// Ends the scope: everything is closed, last opened first. The first failure is returned, and
    /// the others are closed all the same.
    pub async fn close(mut self) -> Result<()> {
        let guards = std::mem::take(&mut self.guards);
        drop(self);
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
        let closed = guard::run(|| guard.close()).await.flatten();
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
        write!(f, "Running(guards: {})", self.guards.len())
    }
}

impl<T: ?Sized> fmt::Debug for Provided<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Provided(guard: {})", self.guard.is_some())
    }
}
