//! Resources that are open while one message is processed, such as a typing indicator, a temporary file or a lock.

use std::{fmt, sync::Mutex, sync::PoisonError};

use crate::{
    BoxFuture,
    error::{Error, Result},
    hooks::guard,
};

/// A resource that a channel attaches to a message. It is notified when processing starts and ends.
pub trait LifespanScope: Send + 'static {
    /// Opens the resource. Called once, before the turn processes the message.
    fn enter(&mut self) -> BoxFuture<'_, Result<()>>;

    /// Closes the resource. Called once after a successful `enter`, with the error that ended the turn, if any.
    fn exit<'a>(&'a mut self, error: Option<&'a Error>) -> BoxFuture<'a, Result<()>>;
}

/// A [`LifespanScope`] that is entered and exited at most once, even if several components try.
///
/// If the turn's future is dropped, the scope is dropped without `exit`. Put cleanup that must always happen into the
/// `Drop` impl of the scope.
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

    /// Enters the scope, unless it was entered before.
    pub async fn enter(&self) -> Result<()> {
        let mut scope = match self.take_phase() {
            LifespanPhase::New(scope) => scope,
            other => {
                self.set_phase(other);
                return Ok(());
            }
        };
        guard::run_with_timeout(|| scope.enter()).await??;
        self.set_phase(LifespanPhase::Open(scope));
        Ok(())
    }

    /// Exits the scope if it is open.
    pub async fn exit(&self, error: Option<&Error>) -> Result<()> {
        match self.take_phase() {
            LifespanPhase::Open(mut scope) => guard::run_with_timeout(|| scope.exit(error)).await?,
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
