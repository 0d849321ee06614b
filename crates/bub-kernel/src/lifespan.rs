//! A scope that is open while one message is worked on: a typing indicator, a temp file, a lock.

use std::{fmt, sync::Mutex, sync::PoisonError};

use crate::{
    BoxFuture,
    error::{Error, Result},
    hooks::guard,
};

/// What a channel attaches to a message to learn when work on it begins and ends.
pub trait LifespanScope: Send + 'static {
    /// Called once, before the turn does anything else with the message.
    fn enter(&mut self) -> BoxFuture<'_, Result<()>>;

    /// Called once after a successful `enter`, with the error the turn ended with, if any.
    fn exit<'a>(&'a mut self, error: Option<&'a Error>) -> BoxFuture<'a, Result<()>>;
}

/// A [`LifespanScope`] that is entered at most once and left at most once, whoever asks.
///
/// When the turn's future is dropped, nothing can be awaited any more: the scope is dropped too, so
/// clean-up that must always happen belongs into its `Drop`.
pub struct Lifespan(Mutex<LifespanPhase>);

enum LifespanPhase {
    New(Box<dyn LifespanScope>),
    Open(Box<dyn LifespanScope>),
    Done,
}

impl Lifespan {
    /// Wraps a scope.
    pub fn new(scope: impl LifespanScope) -> Self {
        Self(Mutex::new(LifespanPhase::New(Box::new(scope))))
    }

    /// Enters the scope, unless that has been done.
    pub async fn enter(&self) -> Result<()> {
        let mut scope = match self.take_phase() {
            LifespanPhase::New(scope) => scope,
            other => {
                self.set_phase(other);
                return Ok(());
            }
        };
        guard::run(|| scope.enter()).await??;
        self.set_phase(LifespanPhase::Open(scope));
        Ok(())
    }

    /// Leaves the scope, unless it is not open.
    pub async fn exit(&self, error: Option<&Error>) -> Result<()> {
        match self.take_phase() {
            LifespanPhase::Open(mut scope) => guard::run(|| scope.exit(error)).await?,
            other => {
                self.set_phase(other);
                Ok(())
            }
        }
    }

    fn take_phase(&self) -> LifespanPhase {
        std::mem::replace(
            &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner),
            LifespanPhase::Done,
        )
    }

    fn set_phase(&self, phase: LifespanPhase) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }
}

impl fmt::Debug for Lifespan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lifespan")
    }
}
