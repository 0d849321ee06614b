//! Resources that are open while one message is processed, such as a typing indicator, a temporary file or a lock.

use std::fmt;

use parking_lot::Mutex;

use crate::{
    async_trait,
    error::{Error, Result},
    hooks::guard,
};

/// A resource that a channel attaches to a message. It is notified when processing starts and ends.
#[async_trait]
pub trait LifespanScope: Send + 'static {
    /// Opens the resource. Called once, before the turn processes the message.
    async fn enter(&mut self) -> Result<()>;

    /// Closes the resource. Called once after a successful `enter`, with the error that ended the turn, if any.
    async fn exit(&mut self, error: Option<&Error>) -> Result<()>;
}

/// A [`LifespanScope`] that is entered and exited at most once, even if several components try.
///
/// If the turn's future is dropped, the scope is dropped without `exit`. Put cleanup that must always happen into the
/// `Drop` impl of the scope.
pub struct Lifespan {
    /// The scope until it is entered.
    new: Mutex<Option<Box<dyn LifespanScope>>>,
    /// The scope while it is open.
    open: Mutex<Option<Box<dyn LifespanScope>>>,
}

impl Lifespan {
    /// Wraps a scope.
    pub fn new(scope: impl LifespanScope) -> Self {
        Self {
            new: Mutex::new(Some(Box::new(scope))),
            open: Mutex::default(),
        }
    }

    /// Enters the scope, unless it was entered before.
    pub async fn enter(&self) -> Result<()> {
        let Some(mut scope) = self.new.lock().take() else {
            return Ok(());
        };
        guard::run_with_timeout(|| scope.enter()).await??;
        *self.open.lock() = Some(scope);
        Ok(())
    }

    /// Exits the scope if it is open.
    pub async fn exit(&self, error: Option<&Error>) -> Result<()> {
        let Some(mut scope) = self.open.lock().take() else {
            return Ok(());
        };
        guard::run_with_timeout(|| scope.exit(error)).await?
    }
}

impl fmt::Debug for Lifespan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lifespan")
    }
}
