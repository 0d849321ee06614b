//! What has not begun: in the steering inbox of the turn that runs, or in the queue behind it.

use bub_kernel::{Delivery, Envelope};

use super::{Item, Lane};

impl Lane {
    /// The steered messages that the turn took. Those it left become turns of their own, before all others.
    pub(super) async fn taken(&mut self) -> Vec<Item> {
        if self.steered.is_empty() {
            return Vec::new();
        }
        let left = match self.core.framework.steering_inbox() {
            Some(inbox) => inbox.drain(&self.session).await.unwrap_or_default(),
            None => Vec::new(),
        };
        let left: Vec<_> = left.iter().filter_map(Envelope::slot::<Delivery>).collect();
        let is_left = |item: &Item| left.iter().any(|delivery| delivery.inbound_id == item.id);
        let (left, taken): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.steered).into_iter().partition(is_left);
        for item in left.into_iter().rev() {
            self.pending.push_front(item);
        }
        taken
    }

    /// Takes out what came last of all that has not begun; what steers came before what waits.
    pub(super) async fn last_waiting(&mut self) -> Option<Item> {
        if let Some(item) = self.pending.pop_back() {
            return Some(item);
        }
        self.steered = self.taken().await;
        let last = self.pending.pop_back();
        for item in std::mem::take(&mut self.pending) {
            let refused = self.steer(item).await;
            self.pending.extend(refused);
        }
        last
    }
}
