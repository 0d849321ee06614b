//! The live state of the journal in memory: unfinished messages, undelivered replies and idempotency keys.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use bub_kernel::{MessageId, ReplyId, SessionId};
use hashlink::LinkedHashMap;

use super::record::{AcceptedMessage, JournalRecord, ReplyRecord};
use crate::fingerprint::Fingerprint;

/// Maximum number of idempotency keys that are kept.
const MAX_IDEMPOTENCY_KEYS: usize = 100_000;
/// How long an idempotency key is kept, in milliseconds.
const IDEMPOTENCY_KEY_TTL_MS: u64 = 24 * 60 * 60 * 1000;

/// An accepted message whose turn is not finished.
#[derive(Clone, Debug)]
pub(crate) struct UnfinishedMessage {
    pub(crate) accepted: Arc<AcceptedMessage>,
    /// Session of the latest turn. Before the first turn, the session that the message was accepted for.
    pub(crate) session: SessionId,
    /// Number of turns that started and may have written the message to the tape.
    pub(crate) attempt: u32,
    /// Number of times that a gateway, after a restart, started to resolve the session of this message.
    pub(crate) resolve_attempts: u32,
    /// Message whose turn this message steers.
    pub(crate) into: Option<MessageId>,
    /// Ids of the messages that are merged with this message.
    pub(crate) with: Vec<MessageId>,
    /// Fingerprints of the replies that were sent.
    pub(crate) fingerprints: Vec<Fingerprint>,
    /// Whether a tool of the turn sent a reply to the chat.
    pub(crate) has_spoken: bool,
}

/// A reply that is not delivered.
#[derive(Clone, Debug)]
pub(crate) struct UndeliveredReply {
    pub(crate) reply: Arc<ReplyRecord>,
    pub(crate) attempt: u32,
    pub(crate) error: Option<String>,
    /// Whether delivery stopped. It resumes when a user retries the reply, or when a client fetches it with its
    /// idempotency key.
    pub(crate) is_stuck: bool,
}

/// Unfinished messages and undelivered replies in order of arrival, and idempotency keys.
#[derive(Debug, Default)]
pub(crate) struct JournalState {
    messages: LinkedHashMap<MessageId, UnfinishedMessage>,
    replies: LinkedHashMap<ReplyId, UndeliveredReply>,
    /// Number of undelivered replies per channel.
    undelivered: HashMap<String, usize>,
    /// Idempotency keys, oldest first, each with the message that has it and the time in milliseconds since 1970.
    keys: LinkedHashMap<String, (MessageId, u64)>,
}

impl JournalState {
    /// Applies a record that was written.
    pub(crate) fn apply(&mut self, record: JournalRecord) {
        match record {
            JournalRecord::Accepted(accepted) => self.apply_accepted(accepted),
            JournalRecord::Started {
                id,
                attempt,
                with,
                session,
            } => {
                if let Some(entry) = self.messages.get_mut(&id) {
                    (entry.attempt, entry.into, entry.with) = (attempt, None, with);
                    entry.session = session.unwrap_or_else(|| entry.accepted.session.clone());
                }
            }
            JournalRecord::Steered { id, into, with } => {
                if let Some(entry) = self.messages.get_mut(&id) {
                    (entry.attempt, entry.into, entry.with) =
                        (entry.attempt.max(1), Some(into), with);
                }
            }
            JournalRecord::Done { ids } => {
                for id in ids {
                    self.messages.remove(&id);
                }
            }
            JournalRecord::Dropped {
                ids, is_rejected, ..
            } => {
                for id in ids {
                    self.messages.remove(&id);
                    if is_rejected {
                        self.keys.retain(|_, (owner, _)| *owner != id);
                    }
                }
            }
            JournalRecord::Resolving { id } => {
                if let Some(entry) = self.messages.get_mut(&id) {
                    entry.resolve_attempts += 1;
                }
            }
            JournalRecord::Reply(reply) => self.apply_reply(reply),
            JournalRecord::Replied {
                id,
                prints,
                print_version: version,
                has_spoken,
            } => {
                if let Some(entry) = self.messages.get_mut(&id) {
                    entry.has_spoken = has_spoken;
                    let known = &mut entry.fingerprints;
                    known.retain(|fingerprint| fingerprint.version != version);
                    known.extend(prints.into_iter().map(|hash| Fingerprint { version, hash }));
                }
            }
            JournalRecord::Attempt { id, attempt, error } => {
                if let Some(entry) = self.replies.get_mut(&id) {
                    (entry.attempt, entry.error) = (attempt, Some(error));
                }
            }
            JournalRecord::Undeliverable { id, error } => self.apply_undeliverable(&id, error),
            JournalRecord::Retry { id } => {
                if let Some(entry) = self.replies.get_mut(&id) {
                    (entry.is_stuck, entry.attempt) = (false, 0);
                }
            }
            JournalRecord::Delivered { id } | JournalRecord::Forgotten { id } => {
                if let Some(removed) = self.replies.remove(&id)
                    && let Some(count) = self.undelivered.get_mut(&removed.reply.channel)
                {
                    *count = count.saturating_sub(1);
                }
            }
            JournalRecord::Key { key, id, at } => self.insert_key(key, id, at),
            JournalRecord::Mark => {}
        }
    }

    fn apply_accepted(&mut self, accepted: AcceptedMessage) {
        if let Some(key) = &accepted.key {
            self.insert_key(key.clone(), accepted.id.clone(), accepted.at);
        }
        let message = UnfinishedMessage {
            session: accepted.session.clone(),
            accepted: Arc::new(accepted),
            attempt: 0,
            resolve_attempts: 0,
            into: None,
            with: Vec::new(),
            fingerprints: Vec::new(),
            has_spoken: false,
        };
        self.messages.insert(message.accepted.id.clone(), message);
    }

    fn apply_undeliverable(&mut self, id: &ReplyId, error: String) {
        let Some(entry) = self.replies.get_mut(id) else {
            return;
        };
        (entry.is_stuck, entry.error) = (true, Some(error));
        let sent_by_tool_for = entry.reply.inbound.clone().filter(|_| entry.reply.by_tool);
        if let Some(inbound) = sent_by_tool_for.and_then(|id| self.messages.get_mut(&id)) {
            // A failed reply does not answer the message. If another reply was delivered, answering twice is better
            // than not at all.
            inbound.has_spoken = false;
        }
    }

    fn apply_reply(&mut self, reply: ReplyRecord) {
        if let Some(entry) = reply
            .inbound
            .as_ref()
            .and_then(|id| self.messages.get_mut(id))
        {
            entry.fingerprints.push(reply.fingerprint());
            entry.has_spoken |= reply.by_tool;
        }
        if let Some(id) = reply.inbound.as_ref().filter(|_| reply.is_last) {
            let removed = self.messages.remove(id);
            for id in removed.into_iter().flat_map(|message| message.with) {
                self.messages.remove(&id);
            }
        }
        *self.undelivered.entry(reply.channel.clone()).or_default() += 1;
        let undelivered = UndeliveredReply {
            reply: Arc::new(reply),
            attempt: 0,
            error: None,
            is_stuck: false,
        };
        self.replies
            .insert(undelivered.reply.id.clone(), undelivered);
    }

    /// Returns the records that restore this state.
    pub(crate) fn to_records(&self) -> Vec<JournalRecord> {
        let keys = self.keys.iter().map(|(key, (id, at))| JournalRecord::Key {
            key: key.clone(),
            id: id.clone(),
            at: *at,
        });
        let mut records: Vec<_> = keys.collect();
        // Replies come before messages, so that they add no fingerprints when they are applied. The `Replied` records
        // of a message then restore all its fingerprints.
        for outgoing in self.replies.values() {
            let id = outgoing.reply.id.clone();
            records.push(JournalRecord::Reply((*outgoing.reply).clone()));
            let error = outgoing.error.clone().unwrap_or_default();
            if outgoing.attempt > 0 {
                records.push(JournalRecord::Attempt {
                    id: id.clone(),
                    attempt: outgoing.attempt,
                    error: error.clone(),
                });
            }
            if outgoing.is_stuck {
                records.push(JournalRecord::Undeliverable { id, error });
            }
        }
        for inbound in self.messages.values() {
            let id = inbound.accepted.id.clone();
            // The key has a separate record.
            records.push(JournalRecord::Accepted(AcceptedMessage {
                key: None,
                ..(*inbound.accepted).clone()
            }));
            for _ in 0..inbound.resolve_attempts {
                records.push(JournalRecord::Resolving { id: id.clone() });
            }
            if inbound.attempt > 0 {
                let is_moved = inbound.session != inbound.accepted.session;
                records.push(JournalRecord::Started {
                    id: id.clone(),
                    attempt: inbound.attempt,
                    with: inbound.with.clone(),
                    session: is_moved.then(|| inbound.session.clone()),
                });
            }
            if let Some(into) = inbound.into.clone() {
                records.push(JournalRecord::Steered {
                    id: id.clone(),
                    into,
                    with: inbound.with.clone(),
                });
            }
            let versions: BTreeSet<u8> = inbound
                .fingerprints
                .iter()
                .map(|fingerprint| fingerprint.version)
                .collect();
            for version in versions {
                let fingerprints = inbound.fingerprints.iter();
                let fingerprints =
                    fingerprints.filter(|fingerprint| fingerprint.version == version);
                records.push(JournalRecord::Replied {
                    id: id.clone(),
                    prints: fingerprints.map(|fingerprint| fingerprint.hash).collect(),
                    print_version: version,
                    has_spoken: inbound.has_spoken,
                });
            }
        }
        records
    }

    /// Reserves an idempotency key for a message. Returns the message that already has the key, if any.
    pub(crate) fn reserve_key(&mut self, key: &str, id: &MessageId, at: u64) -> Option<MessageId> {
        self.remove_expired_keys(at);
        let owner = self.key_owner(key).cloned();
        if owner.is_none() {
            self.insert_key(key.to_owned(), id.clone(), at);
        }
        owner
    }

    /// Releases an idempotency key whose message was not accepted.
    pub(crate) fn release_key(&mut self, key: &str, id: &MessageId) {
        if self.key_owner(key) == Some(id) {
            self.keys.remove(key);
        }
    }

    pub(crate) fn key_owner(&self, key: &str) -> Option<&MessageId> {
        self.keys.get(key).map(|(owner, _)| owner)
    }

    pub(crate) fn unfinished_messages(&self) -> impl Iterator<Item = &UnfinishedMessage> {
        self.messages.values()
    }

    pub(crate) fn undelivered_replies(&self) -> impl Iterator<Item = &UndeliveredReply> {
        self.replies.values()
    }

    pub(crate) fn unfinished_message(&self, id: &MessageId) -> Option<&UnfinishedMessage> {
        self.messages.get(id)
    }

    /// Returns whether nothing is left to do for a message: neither a turn nor the delivery of a reply.
    pub(crate) fn is_finished(&self, id: &MessageId) -> bool {
        let answers_message =
            |outgoing: &UndeliveredReply| outgoing.reply.inbound.as_ref() == Some(id);
        self.unfinished_message(id).is_none() && !self.replies.values().any(answers_message)
    }

    pub(crate) fn undelivered_reply(&self, id: &ReplyId) -> Option<&UndeliveredReply> {
        self.replies.get(id)
    }

    /// Returns the number of undelivered replies of a channel.
    pub(crate) fn undelivered_count(&self, channel: &str) -> usize {
        self.undelivered.get(channel).copied().unwrap_or(0)
    }

    fn insert_key(&mut self, key: String, id: MessageId, at: u64) {
        let (owner, _) = self.keys.entry(key).or_insert_with(|| (id.clone(), at));
        *owner = id;
        self.remove_expired_keys(at);
    }

    fn remove_expired_keys(&mut self, now: u64) {
        while let Some((_, (_, at))) = self.keys.front() {
            let is_valid = now.saturating_sub(*at) < IDEMPOTENCY_KEY_TTL_MS;
            if self.keys.len() <= MAX_IDEMPOTENCY_KEYS && is_valid {
                break;
            }
            self.keys.pop_front();
        }
    }
}
