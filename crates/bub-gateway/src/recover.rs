//! Continues unfinished messages and replies of an earlier process.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use bub_kernel::{BoxFuture, MessageId, SessionId};
use futures_util::{StreamExt as _, stream};

use crate::{
    gateway::GatewayInner,
    journal::JournalRecord,
    lane::{self, Lanes, QueuedMessage},
    outbox::{Outbox, OutboxItem},
};

/// Maximum number of recovered messages whose session is resolved concurrently.
const RESOLVE_CONCURRENCY: usize = 16;
/// Number of times that the session of a recovered message is resolved. If the process dies each time, the message keeps
/// the session that it was accepted for.
const MAX_RESOLVE_ATTEMPTS: u32 = 5;

impl GatewayInner {
    /// Puts recovered messages into their lanes and recovered replies into the outbox.
    pub(crate) async fn recover_unfinished(self: &Arc<Self>) {
        Outbox::drop_expired_unclaimed(self);
        let (inbounds, outgoing) = {
            let live = self.journal.lock_state();
            (
                live.unfinished_messages().cloned().collect::<Vec<_>>(),
                live.undelivered_replies().cloned().collect::<Vec<_>>(),
            )
        };
        let mut items: HashMap<MessageId, (SessionId, QueuedMessage)> = HashMap::new();
        let mut order = Vec::with_capacity(inbounds.len());
        let (mut groups, mut steered) = (Vec::new(), Vec::new());
        let mut kept_counts: BTreeMap<String, usize> = BTreeMap::new();
        for message in inbounds {
            let accepted = &message.accepted;
            let mut inbound = accepted.to_inbound();
            let name = inbound.message.channel().unwrap_or_default().into_owned();
            let Some(channel) = self.channel(&name) else {
                // The channel does not run, so the answer could not be delivered.
                *kept_counts.entry(name).or_default() += 1;
                continue;
            };
            channel.restore_message(&mut inbound);
            let mut item = QueuedMessage::new(accepted.id.clone(), inbound);
            (item.attempt, item.is_recovered) = (message.attempt, true);
            // The message was accepted, so it is queued even without a permit.
            item.permit = Arc::clone(&self.room).try_acquire_owned().ok();
            order.push(accepted.id.clone());
            if !message.with.is_empty() {
                groups.push((accepted.id.clone(), message.with.clone()));
            }
            steered.extend(message.into.map(|into| (accepted.id.clone(), into)));
            items.insert(accepted.id.clone(), (message.session.clone(), item));
        }
        for (channel, messages) in kept_counts {
            let hint = "enable the channel to process these messages";
            tracing::warn!(%channel, messages, hint, "gateway.messages_kept");
        }
        // Messages that were merged into one turn are merged again.
        for (id, with) in groups {
            let Some((session, last)) = items.remove(&id) else {
                continue;
            };
            let attempt = last.attempt;
            let mut batch: Vec<_> = with
                .iter()
                .filter_map(|id| Some(items.remove(id)?.1))
                .collect();
            batch.push(last);
            if let Some(mut merged) = lane::merge_messages(&mut batch) {
                merged.attempt = attempt;
                items.insert(id, (session, merged));
            }
        }
        // Messages that steered a turn go with it again: only the turn knows whether it has read them.
        for (id, into) in steered.into_iter().filter(|(id, into)| id != into) {
            if items.contains_key(&into)
                && let Some((_, item)) = items.remove(&id)
                && let Some((_, turn)) = items.get_mut(&into)
            {
                turn.steered.push(item);
            }
        }
        let mut resolving: Vec<BoxFuture<'_, (SessionId, QueuedMessage)>> =
            Vec::with_capacity(order.len());
        for (session_id, item) in order.iter().filter_map(|id| items.remove(id)) {
            resolving.push(Box::pin(self.resolve_recovered(session_id, item)));
        }
        let mut resolving = stream::iter(resolving).buffered(RESOLVE_CONCURRENCY);
        while let Some((session_id, item)) = resolving.next().await {
            Lanes::push_message(self, &session_id, item);
        }
        for outgoing in outgoing.into_iter().filter(|outgoing| !outgoing.is_stuck) {
            Outbox::enqueue(
                self,
                OutboxItem::from_record(outgoing.reply, outgoing.attempt),
            );
        }
    }

    /// Resolves the session of a recovered message again if no turn has started for it, because its chat may have
    /// switched to another session. If that fails, the message keeps its session.
    async fn resolve_recovered(
        &self,
        accepted: SessionId,
        mut item: QueuedMessage,
    ) -> (SessionId, QueuedMessage) {
        let resolve_attempts = self
            .journal
            .lock_state()
            .unfinished_message(&item.id)
            .map(|message| message.resolve_attempts);
        if item.attempt > 0
            || resolve_attempts.is_none_or(|attempts| attempts >= MAX_RESOLVE_ATTEMPTS)
        {
            return (accepted, item);
        }
        let resolving = JournalRecord::Resolving {
            id: item.id.clone(),
        };
        if let Err(error) = self.journal.append(resolving).await {
            // The gateway starts with a full disk, too.
            tracing::warn!(inbound_id = %item.id, %error, "gateway.resolve_not_counted");
        }
        if let Err(error) = self.framework.resolve_session(&mut item.inbound).await {
            tracing::warn!(session_id = %accepted, inbound_id = %item.id, %error, "gateway.resolve_failed");
        }
        let resolved = item.inbound.session_id().cloned();
        (resolved.unwrap_or(accepted), item)
    }
}
