//! What is said in groups without addressing the bot: context for the next message that addresses it, never a turn.
//!
//! The user who addressed the bot last can continue without addressing it again, for the time in the setting
//! `active_time_window`.

use std::{
    collections::{HashMap, VecDeque},
    sync::Mutex,
    time::Duration,
};

use bub::kernel::Role;
use serde_json::Value;
use tokio::time::Instant;

use super::route::ChatThread;
use crate::lock;

/// Maximum number of lines that a group keeps. The oldest ones are removed.
const MAX_CONTEXT_LINES: usize = 50;
/// Maximum number of groups that are tracked. The group that was quiet for the longest time is removed.
const MAX_GROUPS: usize = 1_000;

/// A message that does not address the bot.
#[derive(Clone, Debug)]
pub(super) struct ContextLine {
    pub(super) sender_id: String,
    pub(super) role: Role,
    /// Whether the sender did not write all of the text, for example because the message is forwarded.
    pub(super) has_foreign_text: bool,
    /// The text, the sender's name and the time.
    pub(super) fields: Value,
}

struct Group {
    lines: VecDeque<ContextLine>,
    /// The id of the user who addressed the bot last, and when.
    addresser: Option<(String, Instant)>,
    last_used: Instant,
}

#[derive(Default)]
pub(super) struct GroupContexts(Mutex<HashMap<ChatThread, Group>>);

impl GroupContexts {
    /// Whether a user continues a conversation that they started by addressing the bot.
    pub(super) fn is_follow_up(&self, chat: ChatThread, user_id: &str, window: Duration) -> bool {
        let groups = lock(&self.0);
        let addresser = groups.get(&chat).and_then(|group| group.addresser.as_ref());
        addresser.is_some_and(|(id, at)| id == user_id && at.elapsed() <= window)
    }

    /// Returns what was said since the last message to the bot.
    pub(super) fn lines(&self, chat: ChatThread) -> Vec<ContextLine> {
        let groups = lock(&self.0);
        let group = groups.get(&chat);
        group.map_or_else(Vec::new, |group| group.lines.iter().cloned().collect())
    }

    /// Adds a message that does not address the bot.
    pub(super) fn add_line(&self, chat: ChatThread, line: ContextLine) {
        self.with_group(chat, |group| {
            group.lines.push_back(line);
            if group.lines.len() > MAX_CONTEXT_LINES {
                group.lines.pop_front();
            }
        });
    }

    /// Records that a message with the earlier lines was accepted. `addresser` is its sender, if it addresses the bot.
    pub(super) fn mark_seen(&self, chat: ChatThread, addresser: Option<&String>) {
        self.with_group(chat, |group| {
            group.lines.clear();
            if let Some(user_id) = addresser {
                group.addresser = Some((user_id.clone(), Instant::now()));
            }
        });
    }

    fn with_group(&self, chat: ChatThread, function: impl FnOnce(&mut Group)) {
        let mut groups = lock(&self.0);
        if groups.len() >= MAX_GROUPS && !groups.contains_key(&chat) {
            let oldest = groups.iter().min_by_key(|(_, group)| group.last_used);
            if let Some(oldest) = oldest.map(|(chat, _)| *chat) {
                groups.remove(&oldest);
            }
        }
        let group = groups.entry(chat).or_insert_with(|| Group {
            lines: VecDeque::new(),
            addresser: None,
            last_used: Instant::now(),
        });
        group.last_used = Instant::now();
        function(group);
    }
}
