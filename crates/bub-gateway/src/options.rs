//! Options of a gateway.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bub_kernel::settings::TAPE_DURABILITY;
use bub_settings::{FromSettings as _, Settings};
use bub_tape::{
    Durability,
    fs::{Fs, RealFs},
};

use crate::settings::{ChannelSettings, GatewaySettings};

/// Where a gateway stores accepted messages and undelivered replies.
#[derive(Clone, Debug)]
pub enum JournalKind {
    /// In a directory, with a lock file and the status socket. Unfinished work resumes at the next start.
    File {
        /// Directory of the journal.
        directory: PathBuf,
        /// Which failures an accepted message survives.
        durability: Durability,
        /// File system that contains the directory.
        fs: Arc<dyn Fs>,
    },
    /// In memory. Unfinished work is lost when the process ends.
    Memory,
}

impl JournalKind {
    /// Returns a journal in a directory of the real file system.
    pub fn file(directory: impl Into<PathBuf>, durability: Durability) -> Self {
        Self::File {
            directory: directory.into(),
            durability,
            fs: Arc::new(RealFs),
        }
    }

    /// Returns the directory of the journal, if it has one.
    pub fn directory(&self) -> Option<&Path> {
        match self {
            Self::File { directory, .. } => Some(directory),
            Self::Memory => None,
        }
    }
}

/// Options of a gateway.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// Where the journal is stored.
    pub journal: JournalKind,
    /// Channel that handles the messages of channels that the gateway does not run. It also delivers replies of a turn
    /// that are addressed to such a channel, but no replies of tools. Without it, the messages are rejected and the
    /// replies are dropped.
    pub catch_all: Option<String>,
    /// How long a debounced chat must be quiet before its collected messages become one turn.
    pub debounce: Duration,
    /// Maximum time that the debounce holds a message.
    pub max_wait: Duration,
    /// How long bub reads all messages of a group after a user addressed bub.
    pub active_window: Duration,
    /// Whether channels receive the stream events of answers.
    pub stream_output: bool,
    /// How long running turns and deliveries may continue after the gateway was asked to stop.
    pub drain: Duration,
    /// Maximum number of unfinished messages per session.
    pub session_queue: usize,
    /// Maximum number of unfinished messages in total. Also the maximum number of undelivered replies per channel.
    pub queue: usize,
    /// Maximum number of concurrent turns. Each turn uses about four file descriptors.
    pub turns: usize,
}

impl GatewayOptions {
    /// Reads the options of the gateway `name` from the settings.
    pub fn new(settings: &Settings, name: &str) -> Self {
        let channels = ChannelSettings::from_settings(settings);
        let gateway = GatewaySettings::from_settings(settings);
        Self {
            journal: JournalKind::file(
                gateway_directory(settings, name),
                journal_durability(settings),
            ),
            catch_all: None,
            debounce: channels.debounce,
            max_wait: channels.max_wait,
            active_window: channels.active_time_window,
            stream_output: channels.stream_output,
            drain: gateway.drain,
            session_queue: gateway.session_queue,
            queue: gateway.max_unfinished,
            turns: gateway.max_turns,
        }
    }
}

/// Returns the directory of the gateway `name`.
pub fn gateway_directory(settings: &Settings, name: &str) -> PathBuf {
    settings.home().join("gateway").join(name)
}

/// Returns the durability of accepted messages from the settings.
pub fn journal_durability(settings: &Settings) -> Durability {
    settings.get(&TAPE_DURABILITY).into()
}
