//! Collects messages that arrive close together into one turn.
//!
//! A message that addresses bub starts the wait. Each further message that addresses bub extends the wait, up to the
//! setting `max_wait_seconds`. After a message that addresses bub, the chat is active for the time in the setting
//! `active_time_window`. Messages that do not address bub join the turn while the chat is active, and are dropped
//! otherwise.

use tokio::time::{Duration, Instant};

use super::{ChatKey, QueuedMessage};
use crate::gateway::GatewayInner;

/// Messages that are held until their chat is quiet.
#[derive(Debug, Default)]
pub(super) struct Debouncer {
    held: Vec<QueuedMessage>,
    /// When the first held message arrived.
    since: Option<Instant>,
    due: Option<Instant>,
    last_active: Option<Instant>,
}

impl Debouncer {
    /// Holds a message. Returns the message instead if it does not address bub and the chat is not active.
    pub(super) fn hold(
        &mut self,
        mut item: QueuedMessage,
        inner: &GatewayInner,
    ) -> Option<QueuedMessage> {
        let now = Instant::now();
        if item.is_recovered {
            // The message was held before the restart and has waited long enough.
            self.due = Some(now);
        } else if item.inbound.message.is_active() || item.was_held {
            self.last_active = Some(now);
            let cap = self.since.unwrap_or(now) + inner.options.max_wait;
            self.due = Some(cap.min(now + inner.options.debounce));
        } else if self.is_chat_active(now, inner) {
            self.due = self.due.or(Some(now + inner.options.max_wait));
        } else {
            self.last_active = None;
            return Some(item);
        }
        self.since = self.since.or(Some(now));
        if let Some(slot) = item.slot.as_mut().filter(|_| !self.held.is_empty()) {
            slot.join_batch();
        }
        self.held.push(item);
        None
    }

    /// Removes and returns the held messages of a chat.
    pub(super) fn take_chat(&mut self, chat: &ChatKey) -> Vec<QueuedMessage> {
        let (taken, remaining) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|item| item.chat_key() == *chat);
        self.held = remaining;
        if self.held.is_empty() {
            (self.due, self.since) = (None, None);
        }
        taken
    }

    fn is_chat_active(&self, now: Instant, inner: &GatewayInner) -> bool {
        self.last_active
            .is_some_and(|last| now.duration_since(last) <= inner.options.active_window)
    }

    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns whether messages are held or the chat is active.
    pub(super) fn has_work(&self, inner: &GatewayInner) -> bool {
        let is_chat_active =
            self.is_chat_active(Instant::now(), inner) && !inner.drain.is_cancelled();
        self.is_holding() || is_chat_active
    }

    pub(super) fn is_due(&self) -> bool {
        self.due.is_some_and(|due| due <= Instant::now())
    }

    pub(super) fn wake_time(&self, inner: &GatewayInner) -> Option<Instant> {
        // One millisecond after the window, because the window includes its end.
        let window = inner.options.active_window + Duration::from_millis(1);
        self.due.or_else(|| Some(self.last_active? + window))
    }

    /// Merges all held messages into one and returns it.
    pub(super) fn take_merged(&mut self) -> Option<QueuedMessage> {
        (self.due, self.since) = (None, None);
        let mut held = std::mem::take(&mut self.held);
        let mut last = held.pop()?;
        last.merge(held);
        Some(last)
    }
}
