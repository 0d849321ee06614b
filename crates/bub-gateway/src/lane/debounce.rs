//! Collecting messages that come in quick succession.
//!
//! A message that addresses bub starts the wait, and each further one prolongs it, but never beyond the hard cap. What
//! is merely heard joins while the chat is active, and is dropped otherwise.

use bub_kernel::Inbound;
use tokio::time::Instant;

use super::{ChatKey, QueuedMessage};
use crate::gateway::GatewayInner;

#[derive(Debug, Default)]
pub(super) struct Debouncer {
    held: Vec<QueuedMessage>,
    /// When the first of the held arrived.
    since: Option<Instant>,
    due: Option<Instant>,
    last_active: Option<Instant>,
}

impl Debouncer {
    /// Holds a message back; returns one that nobody is meant to answer.
    pub(super) fn accept(
        &mut self,
        item: QueuedMessage,
        inner: &GatewayInner,
    ) -> Option<QueuedMessage> {
        let now = Instant::now();
        if item.is_recovered {
            // It was held before the restart, and has waited long enough.
            self.due = Some(now);
        } else if item.inbound.message.is_active() || item.was_held {
            self.last_active = Some(now);
            let cap = self.since.unwrap_or(now) + inner.options.max_wait;
            self.due = Some(cap.min(now + inner.options.debounce));
        } else if self.is_active(now, inner) {
            self.due = self.due.or(Some(now + inner.options.max_wait));
        } else {
            self.last_active = None;
            return Some(item);
        }
        self.since = self.since.or(Some(now));
        self.held.push(item);
        None
    }

    /// Takes out what is held of a chat.
    pub(super) fn take_chat(&mut self, chat: &ChatKey) -> Vec<QueuedMessage> {
        let (taken, kept) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|item| item.chat_key() == *chat);
        self.held = kept;
        if self.held.is_empty() {
            (self.due, self.since) = (None, None);
        }
        taken
    }

    fn is_active(&self, now: Instant, inner: &GatewayInner) -> bool {
        self.last_active
            .is_some_and(|last| now.duration_since(last) <= inner.options.active_window)
    }

    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether there is something to remember.
    pub(super) fn is_needed(&self, inner: &GatewayInner) -> bool {
        let remembers = self.is_active(Instant::now(), inner) && !inner.drain.is_cancelled();
        self.is_holding() || remembers
    }

    pub(super) fn is_due(&self) -> bool {
        self.due.is_some_and(|due| due <= Instant::now())
    }

    pub(super) fn wake_at(&self, inner: &GatewayInner) -> Option<Instant> {
        // A little after the window, which includes its last moment.
        let forget = || {
            Some(
                self.last_active?
                    + inner.options.active_window
                    + std::time::Duration::from_millis(1),
            )
        };
        self.due.or_else(forget)
    }

    /// All that is held, as one message.
    pub(super) fn flush(&mut self) -> Option<QueuedMessage> {
        (self.due, self.since) = (None, None);
        let mut held = std::mem::take(&mut self.held);
        merge(&mut held)
    }
}

/// Merges messages into the last of them.
pub(crate) fn merge(items: &mut Vec<QueuedMessage>) -> Option<QueuedMessage> {
    if items.len() > 1 {
        let batch = items
            .iter_mut()
            .map(|item| std::mem::take(&mut item.inbound));
        let merged = Inbound::merge(batch.collect());
        let mut last = items.pop()?;
        // Only an empty batch cannot be merged.
        last.inbound = merged.unwrap_or_default();
        last.merged = std::mem::take(items);
        return Some(last);
    }
    items.pop()
}
