//! Steering of the running turn, and the order of steering messages among the queued ones.

use bub_kernel::Inbound;

use super::{Lane, QueuedMessage};
use crate::journal::JournalRecord;

impl Lane {
    /// Offers a message to the running turn. Returns the message if the turn does not accept it.
    pub(super) async fn steer_running_turn(
        &mut self,
        item: QueuedMessage,
    ) -> Option<QueuedMessage> {
        let Some(turn) = self.running.values().next() else {
            return Some(item);
        };
        let record = JournalRecord::Steered {
            id: item.id.clone(),
            into: turn.item.id.clone(),
            with: item.merged_ids(),
        };
        // Write the journal first: the turn may write the message to the tape at once, and the gateway must know this
        // after a restart.
        match self.inner.journal.append(record).await {
            Ok(()) => self.steer_journaled(item).await,
            Err(_) => Some(item),
        }
    }

    /// Offers the messages that steered a turn in an earlier process to the resumed turn. The turn knows which of these
    /// messages it has read.
    pub(super) async fn offer_earlier_steering(&mut self, turn: &mut QueuedMessage) {
        for item in std::mem::take(&mut turn.steered) {
            let rejected = self.steer_journaled(item).await;
            self.pending.extend(rejected);
        }
    }

    /// Offers a message whose steering is already in the journal to the running turn. Returns the message if the turn does
    /// not accept it.
    async fn steer_journaled(&mut self, item: QueuedMessage) -> Option<QueuedMessage> {
        let mut inbound = item.inbound.clone();
        let mut attempt = self.inbound_attempt(&item);
        attempt.number += 1;
        inbound.attempt = Some(attempt);
        let framework = &self.inner.framework;
        match framework.steer_message(&self.session_id, inbound).await {
            Ok(true) => {
                self.steered.push(item);
                None
            }
            Ok(false) => Some(item),
            Err(error) => {
                tracing::warn!(session_id = %self.session_id, %error, "lane.steer_failed");
                Some(item)
            }
        }
    }

    /// Returns the steering messages that the turn read. Unread messages get their own turns, before all queued messages.
    pub(super) async fn collect_steered(&mut self) -> Vec<QueuedMessage> {
        if self.steered.is_empty() {
            return Vec::new();
        }
        let unread = self.inner.framework.take_steered(&self.session_id).await;
        let unread = unread.unwrap_or_default();
        let unread: Vec<_> = unread.iter().filter_map(Inbound::message_id).collect();
        let is_unread = |item: &QueuedMessage| unread.contains(&&item.id);
        let (unread, read): (Vec<_>, Vec<_>) = std::mem::take(&mut self.steered)
            .into_iter()
            .partition(is_unread);
        for mut item in unread.into_iter().rev() {
            match item.moves_to.take() {
                Some(to) => self.move_message(item, &to),
                None => self.pending.push_front(item),
            }
        }
        read
    }

    /// Removes and returns the latest message that no turn has read: the last queued message or, if none is queued, the
    /// last steering message.
    pub(super) async fn pop_last_pending(&mut self) -> Option<QueuedMessage> {
        if let Some(item) = self.pending.pop_back() {
            return Some(item);
        }
        self.steered = self.collect_steered().await;
        let last = self.pending.pop_back();
        for item in std::mem::take(&mut self.pending) {
            let rejected = self.steer_running_turn(item).await;
            self.pending.extend(rejected);
        }
        last
    }
}
