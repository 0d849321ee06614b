//! Continues unfinished messages and replies of an earlier process.

use std::{collections::BTreeMap, sync::Arc};

use bub_kernel::{BoxFuture, MessageId, SessionId};
use futures_util::{StreamExt as _, stream};
use hashlink::LinkedHashMap;

use crate::{
    gateway::GatewayInner,
    journal::JournalRecord,
    lane::{Lanes, QueuedMessage},
    outbox::{Outbox, OutboxItem},
};

/// Maximum number of recovered messages whose session is resolved concurrently.
const RESOLVE_CONCURRENCY: usize = 16;
/// Maximum number of starts at which the gateway resolves the session of a recovered message. If the process dies each
/// time, the message keeps the session that it was accepted for.
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
        let mut items: LinkedHashMap<MessageId, (SessionId, QueuedMessage)> = LinkedHashMap::new();
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
            if !items.contains_key(&id) {
                continue;
            }
            let others = with.iter().filter(|other| **other != id);
            let earlier: Vec<_> = others
                .filter_map(|other| Some(items.remove(other)?.1))
                .collect();
            if let Some((_, last)) = items.get_mut(&id) {
                last.merge(earlier);
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
        let resolving: Vec<BoxFuture<'_, (SessionId, QueuedMessage)>> = items
            .into_iter()
            .map(|(_, (session_id, item))| Box::pin(self.resolve_recovered(session_id, item)) as _)
            .collect();
        let mut resolving = stream::iter(resolving).buffered(RESOLVE_CONCURRENCY);
        while let Some((session_id, item)) = resolving.next().await {
            Lanes::push_message(self, &session_id, item);
        }
        for outgoing in outgoing.into_iter().filter(|outgoing| !outgoing.is_stuck) {
            let item = OutboxItem::from_record(outgoing.reply, outgoing.attempt);
            Outbox::enqueue(self, item);
        }
    }

    /// Resolves the session of a recovered message again if no turn has started for it, because its chat may have
    /// switched to another session. If that fails, the message keeps its session.
    async fn resolve_recovered(
        &self,
        accepted: SessionId,
        mut item: QueuedMessage,
    ) -> (SessionId, QueuedMessage) {
        let may_resolve = {
            let state = self.journal.lock_state();
            let message = state.unfinished_message(&item.id);
            message.is_some_and(|message| message.resolve_attempts < MAX_RESOLVE_ATTEMPTS)
        };
        if item.attempt > 0 || !may_resolve {
            return (accepted, item);
        }
        let resolving = JournalRecord::Resolving {
            id: item.id.clone(),
        };
        if let Err(error) = self.journal.append(resolving).await {
            // Continue, so that the gateway also starts if the disk is full.
            tracing::warn!(inbound_id = %item.id, %error, "gateway.resolve_not_counted");
        }
        if let Err(error) = self.framework.resolve_session(&mut item.inbound).await {
            tracing::warn!(session_id = %accepted, inbound_id = %item.id, %error, "gateway.resolve_failed");
        }
        let resolved = item.inbound.session_id().cloned();
        (resolved.unwrap_or(accepted), item)
    }
}
