//! The contract by which a turn is on its tape before anybody is asked.

use std::{fmt, sync::Arc};

use crate::{BoxFuture, error::Result, prompt::Prompt, state::State};

/// Records the question of a turn. The kernel calls it before the model stage, whoever runs that; when
/// it fails, nobody is asked.
pub trait TurnRecorder: Send + Sync + 'static {
    /// Records the prompt.
    fn question<'a>(&'a self, prompt: &'a Prompt, state: &'a State) -> BoxFuture<'a, Result<()>>;
}

/// The state slot through which the kernel finds the recorder of a turn.
#[derive(Clone)]
pub struct RecorderHandle(pub Arc<dyn TurnRecorder>);

impl fmt::Debug for RecorderHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecorderHandle")
    }
}
