//! How a gateway is run.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bub_kernel::{ApprovalAnswer, BoxFuture, Framework, Result, Sender};
use bub_settings::{Settings, core};
use bub_tape::{
    Durability,
    fs::{Fs, RealFs},
};

/// What somebody above this crate does for the gateway.
pub trait House: Send + Sync + 'static {
    /// Waits until no other process works on the session.
    fn wait_for_session<'a>(
        &'a self,
        framework: &'a Framework,
        session_id: &'a str,
    ) -> BoxFuture<'a, Result<()>> {
        let _ = (framework, session_id);
        Box::pin(std::future::ready(Ok(())))
    }

    /// Takes a person's word about a tool call that waits for it.
    fn answer_approval(&self, id: &str, by: &Sender, answer: ApprovalAnswer) -> Result<()> {
        let _ = (id, by, answer);
        Err(bub_kernel::Error::invalid_input(
            "there is no such request; it was answered or has expired",
        ))
    }
}

/// Nobody above: no other process, no approvals.
#[derive(Debug, Default)]
pub struct NoHouse;

impl House for NoHouse {}

/// How a gateway is run.
#[derive(Clone)]
pub struct Options {
    /// Where the journal and the socket are.
    pub directory: PathBuf,
    /// What an acknowledged message survives.
    pub durability: Durability,
    /// Quiet time after which collected messages become a turn.
    pub debounce: Duration,
    /// The longest time a message is held back.
    pub max_wait: Duration,
    /// How long a chat stays active after it was addressed.
    pub active_window: Duration,
    /// Whether channels see answers grow.
    pub stream_output: bool,
    /// How long running work may go on after the request to stop.
    pub drain: Duration,
    /// So many messages of one session may wait.
    pub session_queue: usize,
    /// So many messages may be unfinished in all, and so many replies of a channel undelivered.
    pub queue: usize,
    /// So many turns may run at the same time. Each costs a few open files.
    pub turns: usize,
    /// The file system of the journal.
    pub fs: Arc<dyn Fs>,
    /// What somebody above does.
    pub house: Arc<dyn House>,
}

impl Options {
    /// The options of the settings, for the gateway of that name.
    pub fn new(settings: &Settings, name: &str) -> Self {
        let count = |value: u64| usize::try_from(value).unwrap_or(usize::MAX).max(1);
        Self {
            directory: directory(settings, name),
            durability: match settings.get(&core::TAPE_DURABILITY) {
                core::Durability::Os => Durability::Os,
                core::Durability::Always => Durability::Always,
            },
            debounce: settings.get(&core::DEBOUNCE),
            max_wait: settings.get(&core::MAX_WAIT),
            active_window: settings.get(&core::ACTIVE_TIME_WINDOW),
            stream_output: settings.get(&core::STREAM_OUTPUT),
            drain: settings.get(&core::GATEWAY_DRAIN),
            session_queue: count(settings.get(&core::GATEWAY_SESSION_QUEUE)),
            queue: count(settings.get(&core::GATEWAY_QUEUE)),
            turns: count(settings.get(&core::GATEWAY_TURNS)),
            fs: Arc::new(RealFs),
            house: Arc::new(NoHouse),
        }
    }
}

/// The directory of the gateway of that name.
pub fn directory(settings: &Settings, name: &str) -> PathBuf {
    settings.home().join("gateway").join(name)
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}
