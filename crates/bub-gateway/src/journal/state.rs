//! What is not finished: all the memory the journal needs.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use bub_kernel::{MessageId, ReplyId, SessionId};

use super::record::{AcceptedMessage, JournalRecord, ReplyRecord};
use crate::fingerprint::Fingerprint;

/// So many idempotency keys are remembered.
const MAX_IDEMPOTENCY_KEYS: usize = 100_000;
/// And so long, in milliseconds.
const IDEMPOTENCY_KEY_TTL_MS: u64 = 24 * 60 * 60 * 1000;

/// A message that is not done.
#[derive(Clone, Debug)]
pub(crate) struct UnfinishedMessage {
    pub(crate) accepted: Arc<AcceptedMessage>,
    /// The session of its turn; until one began, the one it was accepted for.
    pub(crate) session: SessionId,
    /// How often a turn began that may have its message on the tape.
    pub(crate) attempt: u32,
    /// The message whose turn it was given to.
    pub(crate) into: Option<MessageId>,
    /// What is merged with it.
    pub(crate) with: Vec<MessageId>,
    /// The fingerprints of the replies it has had.
    pub(crate) fingerprints: Vec<Fingerprint>,
    /// Whether a tool of its turn said something in its chat.
    pub(crate) has_spoken: bool,
}

/// A reply that is not delivered.
#[derive(Clone, Debug)]
pub(crate) struct UndeliveredReply {
    pub(crate) reply: Arc<ReplyRecord>,
    pub(crate) attempt: u32,
    pub(crate) error: Option<String>,
    /// Nobody tries any more until a person says so.
    pub(crate) is_stuck: bool,
}

/// The unfinished messages and replies, in the order of their arrival, and the keys.
#[derive(Debug, Default)]
pub(crate) struct JournalState {
    next: u64,
    message_order: HashMap<MessageId, u64>,
    reply_order: HashMap<ReplyId, u64>,
    inbounds: BTreeMap<u64, UnfinishedMessage>,
    outgoing: BTreeMap<u64, UndeliveredReply>,
    /// How many replies wait for each channel.
    waiting: HashMap<String, usize>,
    keys: HashMap<String, MessageId>,
    key_ages: VecDeque<(u64, String)>,
}

impl JournalState {
    /// Takes in a fact that is written.
    pub(crate) fn apply(&mut self, record: JournalRecord) {
        match record {
            JournalRecord::Accepted(accepted) => {
                if let Some(key) = &accepted.key {
                    self.remember(key.clone(), accepted.id.clone(), accepted.at);
                }
                let place = self.next_place();
                self.message_order.insert(accepted.id.clone(), place);
                let fresh = UnfinishedMessage {
                    session: accepted.session.clone(),
                    accepted: Arc::new(accepted),
                    attempt: 0,
                    into: None,
                    with: Vec::new(),
                    fingerprints: Vec::new(),
                    has_spoken: false,
                };
                self.inbounds.insert(place, fresh);
            }
            JournalRecord::Started {
                id,
                attempt,
                with,
                session,
            } => {
                if let Some(found) = self.inbound_mut(&id) {
                    (found.attempt, found.into, found.with) = (attempt, None, with);
                    found.session = session.unwrap_or_else(|| found.accepted.session.clone());
                }
            }
            JournalRecord::Steered { id, into, with } => {
                if let Some(found) = self.inbound_mut(&id) {
                    (found.attempt, found.into, found.with) =
                        (found.attempt.max(1), Some(into), with);
                }
            }
            JournalRecord::Done { ids } | JournalRecord::Dropped { ids, .. } => {
                for id in ids {
                    self.finish(&id);
                }
            }
            JournalRecord::Reply(reply) => self.apply_reply(reply),
            JournalRecord::Replied {
                id,
                prints,
                print_version: version,
                has_spoken,
            } => {
                if let Some(found) = self.inbound_mut(&id) {
                    found.fingerprints.retain(|known| known.version != version);
                    let fingerprints = prints.into_iter();
                    found
                        .fingerprints
                        .extend(fingerprints.map(|hash| Fingerprint { version, hash }));
                    found.has_spoken = has_spoken;
                }
            }
            JournalRecord::Attempt { id, attempt, error } => {
                if let Some(found) = self.outgoing_mut(&id) {
                    (found.attempt, found.error) = (attempt, Some(error));
                }
            }
            JournalRecord::Undeliverable { id, error } => {
                let Some(found) = self.outgoing_mut(&id) else {
                    return;
                };
                (found.is_stuck, found.error) = (true, Some(error));
                let refused = found.reply.inbound.clone().filter(|_| found.reply.by_tool);
                if let Some(inbound) = refused.and_then(|id| self.inbound_mut(&id)) {
                    // What was not heard is no answer. Should another have been, it is rather said twice than not.
                    inbound.has_spoken = false;
                }
            }
            JournalRecord::Retry { id } => {
                if let Some(found) = self.outgoing_mut(&id) {
                    (found.is_stuck, found.attempt) = (false, 0);
                }
            }
            JournalRecord::Delivered { id } | JournalRecord::Forgotten { id } => {
                let gone = self
                    .reply_order
                    .remove(&id)
                    .and_then(|place| self.outgoing.remove(&place));
                if let Some(count) = gone.and_then(|gone| self.waiting.get_mut(&gone.reply.channel))
                {
                    *count = count.saturating_sub(1);
                }
            }
            JournalRecord::Key { key, id, at } => self.remember(key, id, at),
            JournalRecord::Mark => {}
        }
    }

    fn apply_reply(&mut self, reply: ReplyRecord) {
        if let Some(found) = reply.inbound.as_ref().and_then(|id| self.inbound_mut(id)) {
            found.fingerprints.push(reply.fingerprint());
            found.has_spoken |= reply.by_tool;
        }
        if let Some(id) = reply.inbound.as_ref().filter(|_| reply.is_last) {
            let merged = self
                .finish(id)
                .map(|inbound| inbound.with)
                .unwrap_or_default();
            for id in merged {
                self.finish(&id);
            }
        }
        let place = self.next_place();
        self.reply_order.insert(reply.id.clone(), place);
        *self.waiting.entry(reply.channel.clone()).or_default() += 1;
        let fresh = UndeliveredReply {
            reply: Arc::new(reply),
            attempt: 0,
            error: None,
            is_stuck: false,
        };
        self.outgoing.insert(place, fresh);
    }

    /// The records from which all this can be built again.
    pub(crate) fn records(&self) -> Vec<JournalRecord> {
        let mut records = Vec::with_capacity(
            self.key_ages.len() + self.message_order.len() + self.reply_order.len(),
        );
        for (at, key) in &self.key_ages {
            if let Some(id) = self.keys.get(key) {
                records.push(JournalRecord::Key {
                    key: key.clone(),
                    id: id.clone(),
                    at: *at,
                });
            }
        }
        // Before the messages, whose own records have all their fingerprints.
        for outgoing in self.outgoing.values() {
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
        for inbound in self.inbounds.values() {
            let id = inbound.accepted.id.clone();
            // The key has its own record.
            records.push(JournalRecord::Accepted(AcceptedMessage {
                key: None,
                ..(*inbound.accepted).clone()
            }));
            if inbound.attempt > 0 {
                let moved = inbound.session != inbound.accepted.session;
                records.push(JournalRecord::Started {
                    id: id.clone(),
                    attempt: inbound.attempt,
                    with: inbound.with.clone(),
                    session: moved.then(|| inbound.session.clone()),
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
                let own = inbound.fingerprints.iter();
                let own = own.filter(|fingerprint| fingerprint.version == version);
                records.push(JournalRecord::Replied {
                    id: id.clone(),
                    prints: own.map(|fingerprint| fingerprint.hash).collect(),
                    print_version: version,
                    has_spoken: inbound.has_spoken,
                });
            }
        }
        records
    }

    /// Reserves a key for a message; the id of the one that has it already.
    pub(crate) fn reserve(&mut self, key: &str, id: &MessageId, at: u64) -> Option<MessageId> {
        self.forget_old_keys(at);
        if let Some(owner) = self.keys.get(key) {
            return Some(owner.clone());
        }
        self.remember(key.to_owned(), id.clone(), at);
        None
    }

    /// Gives a key back that was reserved for a message which was not accepted.
    pub(crate) fn release(&mut self, key: &str, id: &MessageId) {
        if self.keys.get(key).is_some_and(|owner| owner == id) {
            self.keys.remove(key);
            self.key_ages.retain(|(_, known)| known != key);
        }
    }

    pub(crate) fn owner(&self, key: &str) -> Option<&MessageId> {
        self.keys.get(key)
    }

    pub(crate) fn inbounds(&self) -> impl Iterator<Item = &UnfinishedMessage> {
        self.inbounds.values()
    }

    pub(crate) fn outgoing(&self) -> impl Iterator<Item = &UndeliveredReply> {
        self.outgoing.values()
    }

    pub(crate) fn inbound(&self, id: &MessageId) -> Option<&UnfinishedMessage> {
        self.inbounds.get(self.message_order.get(id)?)
    }

    /// Whether nothing is left to do for a message: it is answered, and its replies are delivered.
    pub(crate) fn is_finished(&self, id: &MessageId) -> bool {
        let is_owed = |outgoing: &UndeliveredReply| outgoing.reply.inbound.as_ref() == Some(id);
        self.inbound(id).is_none() && !self.outgoing.values().any(is_owed)
    }

    pub(crate) fn reply(&self, id: &ReplyId) -> Option<&UndeliveredReply> {
        self.outgoing.get(self.reply_order.get(id)?)
    }

    /// How many replies of a channel are not delivered.
    pub(crate) fn undelivered(&self, channel: &str) -> usize {
        self.waiting.get(channel).copied().unwrap_or(0)
    }

    fn inbound_mut(&mut self, id: &MessageId) -> Option<&mut UnfinishedMessage> {
        self.inbounds.get_mut(self.message_order.get(id)?)
    }

    fn finish(&mut self, id: &MessageId) -> Option<UnfinishedMessage> {
        self.inbounds.remove(&self.message_order.remove(id)?)
    }

    fn outgoing_mut(&mut self, id: &ReplyId) -> Option<&mut UndeliveredReply> {
        self.outgoing.get_mut(self.reply_order.get(id)?)
    }

    fn next_place(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn remember(&mut self, key: String, id: MessageId, at: u64) {
        if self.keys.insert(key.clone(), id).is_none() {
            self.key_ages.push_back((at, key));
        }
        self.forget_old_keys(at);
    }

    fn forget_old_keys(&mut self, now: u64) {
        while let Some((at, _)) = self.key_ages.front() {
            if self.key_ages.len() <= MAX_IDEMPOTENCY_KEYS
                && now.saturating_sub(*at) < IDEMPOTENCY_KEY_TTL_MS
            {
                break;
            }
            if let Some((_, key)) = self.key_ages.pop_front() {
                self.keys.remove(&key);
            }
        }
    }
}
