//! A message in a lane.

use std::sync::Arc;

use bub_kernel::{Envelope, Inbound, InboundReceipt, MessageId, MessageOutcome, SessionId};
use tokio::sync::OwnedSemaphorePermit;

use super::{ChatKey, QueueSlot};

/// A message in a lane, with its queue slot and permit.
#[derive(Debug)]
pub(crate) struct QueuedMessage {
    pub(crate) id: MessageId,
    /// The message. Empty while its turn runs, and after it was merged into another message.
    pub(crate) inbound: Inbound,
    pub(crate) receipt: Option<Arc<InboundReceipt>>,
    /// Number of turns that were started for the message.
    pub(crate) attempt: u32,
    pub(crate) is_recovered: bool,
    /// Whether the message was queued in the lane of another session. If so, it is not admitted again.
    pub(crate) was_queued: bool,
    /// Whether the debounce of another session held the message. This session debounces it, too.
    pub(crate) was_held: bool,
    /// Session that the chat was switched to while the message steered a turn.
    pub(crate) moves_to: Option<SessionId>,
    /// Messages that were merged into this message, oldest first.
    pub(crate) merged: Vec<QueuedMessage>,
    /// Messages that steered the turn of this message in an earlier process. Empty once the turn has started.
    pub(crate) steered: Vec<QueuedMessage>,
    pub(crate) permit: Option<OwnedSemaphorePermit>,
    pub(crate) slot: Option<QueueSlot>,
}

impl QueuedMessage {
    pub(crate) fn new(id: MessageId, inbound: Inbound) -> Self {
        Self {
            id,
            receipt: inbound.receipt.clone(),
            inbound,
            attempt: 0,
            is_recovered: false,
            was_queued: false,
            was_held: false,
            moves_to: None,
            merged: Vec::new(),
            steered: Vec::new(),
            permit: None,
            slot: None,
        }
    }

    /// Merges earlier messages into this message.
    pub(crate) fn merge(&mut self, mut earlier: Vec<Self>) {
        if earlier.is_empty() {
            return;
        }
        let items = earlier.iter_mut().chain([&mut *self]);
        let batch = items
            .map(|item| std::mem::take(&mut item.inbound))
            .collect();
        // Only an empty batch cannot be merged.
        self.inbound = Inbound::merge_batch(batch).unwrap_or_default();
        self.merged = earlier;
    }

    pub(super) fn chat_key(&self) -> ChatKey {
        chat_key(&self.inbound.message)
    }

    pub(super) fn all_ids(&self) -> Vec<MessageId> {
        let others = self
            .merged
            .iter()
            .chain(&self.steered)
            .flat_map(Self::all_ids);
        others.chain([self.id.clone()]).collect()
    }

    pub(super) fn merged_ids(&self) -> Vec<MessageId> {
        self.merged.iter().map(|item| item.id.clone()).collect()
    }

    /// Reports the outcome to the receipts of the message and of the messages that joined it.
    pub(super) fn settle(self, outcome: MessageOutcome) {
        for item in self.merged.into_iter().chain(self.steered) {
            let joined = match &outcome {
                MessageOutcome::Done { .. } => MessageOutcome::Joined {
                    message_id: self.id.clone(),
                },
                other => other.clone(),
            };
            item.settle(joined);
        }
        if let Some(receipt) = self.receipt {
            receipt.settle(outcome);
        }
    }
}

/// Returns the channel and the chat of a message.
pub(crate) fn chat_key(message: &Envelope) -> ChatKey {
    (
        message.channel().unwrap_or_default().into_owned(),
        message.chat_id().unwrap_or("default".into()).into_owned(),
    )
}
