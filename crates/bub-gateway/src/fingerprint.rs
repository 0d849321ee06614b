//! Fingerprints of replies. A repeated turn does not send a reply that an earlier attempt sent.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use bub_kernel::Envelope;
use sha2::{Digest as _, Sha256};

/// Identifies a reply by its channel, chat, kind and content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    /// Version of the algorithm of `hash`. Part of the journal's format.
    pub(crate) version: u8,
    pub(crate) hash: u64,
}

impl Fingerprint {
    /// Version of the algorithm of the first release. Journals of that release do not store a version.
    pub(crate) const LEGACY_VERSION: u8 = 0;
    /// Version of the current algorithm. Its `hash` is the first eight bytes of a SHA-256 digest, little-endian.
    const VERSION: u8 = 1;

    /// Computes the fingerprint of a reply that goes to a channel.
    pub(crate) fn new(channel: &str, reply: &Envelope) -> Self {
        let mut digest = Sha256::new();
        let chat_id = reply.chat_id().unwrap_or("default".into());
        let kind = reply.kind();
        for part in [channel, &chat_id, kind.name(), &reply.content()] {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        let digest: [u8; 32] = digest.finalize().into();
        let mut hash = [0; 8];
        hash.copy_from_slice(digest.first_chunk::<8>().unwrap_or(&[0; 8]));
        Self {
            version: Self::VERSION,
            hash: u64::from_le_bytes(hash),
        }
    }

    /// Returns whether this is the fingerprint of `reply` through `channel`. Supports all versions of the algorithm.
    pub(crate) fn matches(self, channel: &str, reply: &Envelope) -> bool {
        match self.version {
            Self::LEGACY_VERSION => self.hash == legacy_hash(channel, reply),
            Self::VERSION => self == Self::new(channel, reply),
            _ => false,
        }
    }
}

/// Computes the hash of a reply with the algorithm of the first release: the default hasher of the standard library,
/// currently SipHash-1-3 with zero keys. The hash is compared only with hashes in journals that the first release
/// wrote. If the standard library changes its hasher, a test fails. In the worst case, a reply of an interrupted turn
/// is then sent twice after an upgrade from the first release.
fn legacy_hash(channel: &str, reply: &Envelope) -> u64 {
    let mut hasher = DefaultHasher::new();
    channel.hash(&mut hasher);
    reply.chat_id().hash(&mut hasher);
    reply.kind().name().hash(&mut hasher);
    reply.content().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply() -> Envelope {
        Envelope::from_text("hi").with("chat_id", "a")
    }

    // These numbers are part of the journal's format and must never change.
    #[test]
    fn fingerprints_are_the_same_in_every_release() {
        let fingerprint = Fingerprint::new("lab", &reply());
        assert_eq!(fingerprint.version, 1);
        assert_eq!(fingerprint.hash, 0x0992_aa06_ca4c_8ffb);
        assert_eq!(legacy_hash("lab", &reply()), 0xfb93_efc6_8126_b59c);
    }

    #[test]
    fn parts_are_kept_apart() {
        let shifted = Envelope::from_text("i").with("chat_id", "ah");
        let first = Fingerprint::new("lab", &reply());
        assert_ne!(first, Fingerprint::new("lab", &shifted));
        assert!(first.matches("lab", &reply()) && !first.matches("la", &reply()));
    }
}
