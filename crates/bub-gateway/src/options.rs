//! How a gateway is run.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bub_kernel::settings::TAPE_DURABILITY;
use bub_settings::Settings;
use bub_tape::{
    Durability,
    fs::{Fs, RealFs},
};

use crate::settings::{
    ACTIVE_TIME_WINDOW, DEBOUNCE, GATEWAY_DRAIN, GATEWAY_QUEUE, GATEWAY_SESSION_QUEUE,
    GATEWAY_TURNS, MAX_WAIT, STREAM_OUTPUT,
};

/// Where a gateway keeps accepted messages and undelivered replies.
#[derive(Clone)]
pub enum JournalKind {
    /// In a directory, with a lock and the status socket: what is unfinished is picked up at the next start.
    File {
        /// The directory.
        directory: PathBuf,
        /// What an acknowledged message survives.
        durability: Durability,
        /// The file system.
        fs: Arc<dyn Fs>,
    },
    /// In memory: it ends with the process, and touches no disk.
    Memory,
}

impl JournalKind {
    /// A journal in a directory of the real file system.
    pub fn file(directory: impl Into<PathBuf>, durability: Durability) -> Self {
        Self::File {
            directory: directory.into(),
            durability,
            fs: Arc::new(RealFs),
        }
    }

    /// The directory of the journal, if it has one.
    pub fn directory(&self) -> Option<&Path> {
        match self {
            Self::File { directory, .. } => Some(directory),
            Self::Memory => None,
        }
    }
}

impl std::fmt::Debug for JournalKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File { directory, .. } => f.debug_tuple("File").field(directory).finish(),
            Self::Memory => f.write_str("Memory"),
        }
    }
}

/// How a gateway is run.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// The journal.
    pub journal: JournalKind,
    /// The channel that gets plain replies for channels which are not part of the gateway, and accepts their messages.
    /// Without one, such replies are dropped and such messages refused.
    pub catch_all: Option<String>,
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
}

impl GatewayOptions {
    /// The options of the settings, for the gateway of that name.
    pub fn new(settings: &Settings, name: &str) -> Self {
        let count = |value: u64| usize::try_from(value).unwrap_or(usize::MAX).max(1);
        Self {
            journal: JournalKind::file(directory(settings, name), durability(settings)),
            catch_all: None,
            debounce: settings.get(&DEBOUNCE),
            max_wait: settings.get(&MAX_WAIT),
            active_window: settings.get(&ACTIVE_TIME_WINDOW),
            stream_output: settings.get(&STREAM_OUTPUT),
            drain: settings.get(&GATEWAY_DRAIN),
            session_queue: count(settings.get(&GATEWAY_SESSION_QUEUE)),
            queue: count(settings.get(&GATEWAY_QUEUE)),
            turns: count(settings.get(&GATEWAY_TURNS)),
        }
    }
}

/// The directory of the gateway of that name.
pub fn directory(settings: &Settings, name: &str) -> PathBuf {
    settings.home().join("gateway").join(name)
}

/// What an acknowledged message survives, by the settings.
pub fn durability(settings: &Settings) -> Durability {
    settings.get(&TAPE_DURABILITY).into()
}
