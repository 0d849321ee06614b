//! What has not begun: in the steering inbox of the turn that runs, or in the queue behind it.

use bub_kernel::{Inbound, InboundAttempt};

use super::{Lane, QueuedMessage};
use crate::journal::JournalRecord;

impl Lane {
    /// Gives a message to the running turn, or back when that does not take it.
    pub(super) async fn steer(&mut self, item: QueuedMessage) -> Option<QueuedMessage> {
        let Some(into) = self
            .running
            .values()
            .next()
            .map(|turn| turn.item.id.clone())
        else {
            return Some(item);
        };
        let with = item.merged_ids();
        // First, because the turn may have it on its tape right after, and the next process has to know.
        let noted = self
            .inner
            .journal
            .append(JournalRecord::Steered {
                id: item.id.clone(),
                into,
                with,
            })
            .await;
        if noted.is_err() {
            Some(item)
        } else {
            self.offer(item).await
        }
    }

    /// Gives a turn that goes on after a restart what it was given before; it knows what of that it has heard.
    pub(super) async fn resteer(&mut self, turn: &mut QueuedMessage) {
        for item in std::mem::take(&mut turn.steered) {
            let refused = self.offer(item).await;
            self.pending.extend(refused);
        }
    }

    async fn offer(&mut self, item: QueuedMessage) -> Option<QueuedMessage> {
        let mut inbound = item.inbound.clone();
        inbound.attempt = Some(InboundAttempt {
            number: item.attempt + 1,
            ..self.attempt(&item)
        });
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

    /// The steered messages that the turn took. Those it left become turns of their own, before all others.
    pub(super) async fn collect_steered(&mut self) -> Vec<QueuedMessage> {
        if self.steered.is_empty() {
            return Vec::new();
        }
        let left = match self.inner.framework.steering_inbox() {
            Some(inbox) => inbox.drain(&self.session_id).await.unwrap_or_default(),
            None => Vec::new(),
        };
        let left: Vec<_> = left.iter().filter_map(Inbound::message_id).collect();
        let is_left = |item: &QueuedMessage| left.contains(&&item.id);
        let (left, taken): (Vec<_>, Vec<_>) = std::mem::take(&mut self.steered)
            .into_iter()
            .partition(is_left);
        for mut item in left.into_iter().rev() {
            match item.moves_to.take() {
                Some(to) => self.move_item(item, &to),
                None => self.pending.push_front(item),
            }
        }
        taken
    }

    /// Takes out what came last of all that has not begun; what steers came before what waits.
    pub(super) async fn pop_last_pending(&mut self) -> Option<QueuedMessage> {
        if let Some(item) = self.pending.pop_back() {
            return Some(item);
        }
        self.steered = self.collect_steered().await;
        let last = self.pending.pop_back();
        for item in std::mem::take(&mut self.pending) {
            let refused = self.steer(item).await;
            self.pending.extend(refused);
        }
        last
    }
}
