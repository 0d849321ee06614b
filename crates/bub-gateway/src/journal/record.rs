//! Records of the journal. Each record is one line with a checksum.

use std::{collections::BTreeSet, ops::Not};

use bub_kernel::{Envelope, Inbound, MessageId, ReplyId, Sender, SessionId, UntrustedSource};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::fingerprint::Fingerprint;

/// A change of a message or a reply. The names of variants and fields are part of the file format.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JournalRecord {
    Accepted(AcceptedMessage),
    /// A turn for the message starts. `with` has the messages that are merged with it, oldest first.
    Started {
        id: MessageId,
        attempt: u32,
        with: Vec<MessageId>,
        /// Session of the turn, if it differs from the session that the message was accepted for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<SessionId>,
    },
    /// The message `id` steers the turn of the message `into`. `with` has the messages that are merged with `id`. The
    /// record is written before the turn can read the message.
    Steered {
        id: MessageId,
        into: MessageId,
        #[serde(default)]
        with: Vec<MessageId>,
    },
    Done {
        ids: Vec<MessageId>,
    },
    Dropped {
        ids: Vec<MessageId>,
        reason: String,
        /// Whether the sender knows that the message was rejected and may send it again with the same idempotency key.
        #[serde(default, skip_serializing_if = "Not::not")]
        is_rejected: bool,
    },
    /// The gateway starts to resolve the session of a recovered message. These records count the attempts.
    Resolving {
        id: MessageId,
    },
    Reply(ReplyRecord),
    /// Fingerprints of the replies that were sent for an unfinished message, all with the version `print_version`.
    Replied {
        id: MessageId,
        prints: Vec<u64>,
        #[serde(default, skip_serializing_if = "is_zero")]
        print_version: u8,
        #[serde(default, skip_serializing_if = "Not::not")]
        has_spoken: bool,
    },
    Attempt {
        id: ReplyId,
        attempt: u32,
        error: String,
    },
    Delivered {
        id: ReplyId,
    },
    Undeliverable {
        id: ReplyId,
        error: String,
    },
    Retry {
        id: ReplyId,
    },
    Forgotten {
        id: ReplyId,
    },
    Key {
        key: String,
        id: MessageId,
        at: u64,
    },
    /// Empty record. When it is acknowledged, all earlier records are written.
    Mark,
}

/// An accepted message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AcceptedMessage {
    pub(crate) id: MessageId,
    /// Time of acceptance in milliseconds since 1970.
    pub(crate) at: u64,
    pub(crate) session: SessionId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// The sender that the channel authenticated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sender: Option<Sender>,
    /// The sources of text in the message that the sender does not control.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) untrusted: BTreeSet<UntrustedSource>,
    pub(crate) message: Box<RawValue>,
}

/// A reply that must be delivered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ReplyRecord {
    pub(crate) id: ReplyId,
    pub(crate) at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) inbound: Option<MessageId>,
    pub(crate) channel: String,
    pub(crate) chat: String,
    pub(crate) print: u64,
    /// Version of the algorithm of `print`. Records of the first release do not have it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) print_version: u8,
    /// Whether a tool sent the reply to the chat of the turn.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub(crate) by_tool: bool,
    /// Whether a client fetches the reply with the idempotency key of its message.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub(crate) is_claimed: bool,
    /// Whether this record also marks the inbound message as finished. One record does both, so that a crash in between
    /// cannot cause a retry of a message whose failure was reported.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub(crate) is_last: bool,
    pub(crate) message: Box<RawValue>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "required by serde")]
fn is_zero(value: &u8) -> bool {
    *value == 0
}

impl AcceptedMessage {
    /// Returns the accepted message and its sender, without what cannot be stored, such as the receipt.
    pub(crate) fn to_inbound(&self) -> Inbound {
        let mut inbound = Inbound::new(decode_envelope(&self.message));
        inbound.untrusted.clone_from(&self.untrusted);
        match &self.sender {
            Some(sender) => inbound.with_sender(sender.clone()),
            None => inbound,
        }
    }
}

impl ReplyRecord {
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        Fingerprint {
            version: self.print_version,
            hash: self.print,
        }
    }

    pub(crate) fn to_envelope(&self) -> Envelope {
        decode_envelope(&self.message)
    }
}

fn decode_envelope(raw: &RawValue) -> Envelope {
    // `encode_envelope` wrote the value and the checksum is valid, so this does not fail.
    serde_json::from_str(raw.get()).unwrap_or_default()
}

/// Encodes an envelope for the journal.
pub(crate) fn encode_envelope(envelope: &Envelope) -> bub_kernel::Result<Box<RawValue>> {
    serde_json::value::to_raw_value(envelope).map_err(|error| {
        bub_kernel::Error::invalid_input(format!(
            "cannot store the message in the journal: {error}; check the fields that the channel or a plugin set"
        ))
    })
}

impl JournalRecord {
    /// Returns the encoded line: checksum, space, JSON, newline.
    pub(crate) fn to_line(&self) -> Vec<u8> {
        let mut line = Vec::with_capacity(256);
        line.extend_from_slice(b"00000000 ");
        // Every record can be encoded as JSON.
        let _ = serde_json::to_writer(&mut line, self);
        let sum = format!("{:08x}", crc32fast::hash(line.get(9..).unwrap_or_default()));
        if let Some(checksum) = line.get_mut(..8) {
            checksum.copy_from_slice(sum.as_bytes());
        }
        line.push(b'\n');
        line
    }

    /// Parses a line without its newline. Returns `None` if it is damaged.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        let (sum, json) = line.split_at_checked(9)?;
        let sum = u32::from_str_radix(std::str::from_utf8(sum.get(..8)?).ok()?, 16).ok()?;
        if crc32fast::hash(json) != sum {
            return None;
        }
        serde_json::from_slice(json).ok()
    }
}

/// Returns the current time in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
