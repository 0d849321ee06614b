//! The record in a tape's lock file: the committed length of the tape and the operation in progress.
//!
//! The record is small enough to be written at once and contains its own checksum. If it is missing or invalid,
//! recovery determines the state from the tape file.

use std::io;

use super::chain::ChainHead;
use crate::fs::FsFile;

const MAGIC: u64 = u64::from_le_bytes(*b"bubtape1");
const RECORD_BYTES: usize = 11 * 8;
/// Size of the part after the record with the head of the hash chain: hash, end of its line, checksum. Versions without
/// hash chains neither read nor write it.
const HEAD_BYTES: usize = 32 + 2 * 8;

/// The operation that the last lock holder started and did not finish. The record contains the index of the variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockPhase {
    /// No operation; the tape ends at [`LockRecord::end`].
    Idle,
    /// Writing a batch at the offset [`LockRecord::end`]. The record also has the length and the checksum of the batch.
    Batch,
    /// Replacing the tape file with another one.
    Replace,
    /// No operation, but an fsync failed. Bytes after [`LockRecord::synced`] are in the tape file but may not be on
    /// disk.
    Suspect,
}

impl LockPhase {
    const ALL: [Self; 4] = [Self::Idle, Self::Batch, Self::Replace, Self::Suspect];
}

/// The content of a lock file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockRecord {
    /// Number of writes of the record, so that readers detect any change.
    pub(crate) sequence: u64,
    pub(crate) phase: LockPhase,
    /// The inode of the tape file.
    pub(crate) inode: u64,
    /// End of the committed part of the tape, in bytes.
    pub(crate) end: u64,
    /// End of the part of the tape that is known to be on disk, in bytes.
    pub(crate) synced: u64,
    /// Length in bytes of the batch that is being written.
    pub(crate) length: u64,
    /// Checksum of the batch that is being written.
    pub(crate) crc: u32,
    /// Highest id in the committed part of the tape.
    pub(crate) max_id: i64,
    /// Highest id on the tape once the batch that is being written is committed.
    pub(crate) next_max_id: i64,
    /// The head of the hash chain in the committed part of the tape.
    pub(crate) head: Option<ChainHead>,
}

impl LockRecord {
    pub(crate) fn idle(inode: u64, end: u64, max_id: i64) -> Self {
        Self {
            sequence: 0,
            phase: LockPhase::Idle,
            inode,
            end,
            synced: 0,
            length: 0,
            crc: 0,
            max_id,
            next_max_id: max_id,
            head: None,
        }
    }

    /// Returns the record with the phase `Idle` that replaces this record when its batch is completely written.
    pub(crate) fn to_committed(self) -> Self {
        let end = self.end + self.length;
        Self {
            sequence: self.sequence,
            synced: self.synced,
            head: self.head,
            ..Self::idle(self.inode, end, self.next_max_id)
        }
    }

    /// Reads the record. Returns `None` if it is missing or invalid.
    pub(crate) fn read(file: &dyn FsFile) -> io::Result<Option<Self>> {
        let mut bytes = [0; RECORD_BYTES + HEAD_BYTES];
        let filled = file.read_full_at(&mut bytes, 0)?;
        let (record, head) = bytes.split_at(RECORD_BYTES);
        let record = record.try_into().ok().filter(|_| filled >= RECORD_BYTES);
        let head = head.try_into().ok().filter(|_| filled == bytes.len());
        Ok(record.and_then(Self::decode).map(|record| Self {
            head: head.and_then(decode_head),
            ..record
        }))
    }

    pub(crate) fn write(&self, file: &dyn FsFile) -> io::Result<()> {
        file.write_all_at(&self.encode(), 0)
    }

    fn encode(&self) -> Vec<u8> {
        let fields = [
            MAGIC,
            self.sequence,
            self.phase as u64,
            self.inode,
            self.end,
            self.synced,
            self.length,
            self.crc.into(),
            self.max_id.cast_unsigned(),
            self.next_max_id.cast_unsigned(),
        ];
        let mut bytes = fields.map(u64::to_le_bytes).concat();
        let checksum = u64::from(crc32fast::hash(&bytes));
        bytes.extend(checksum.to_le_bytes());
        bytes.extend(encode_head(self.head));
        bytes
    }

    fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let (body, _) = bytes.split_last_chunk::<8>()?;
        let mut fields = bytes.as_chunks().0.iter().copied().map(u64::from_le_bytes);
        let mut next = || fields.next();
        let magic = next()?;
        let record = Self {
            sequence: next()?,
            phase: *LockPhase::ALL.get(usize::try_from(next()?).ok()?)?,
            inode: next()?,
            end: next()?,
            synced: next()?,
            length: next()?,
            crc: u32::try_from(next()?).ok()?,
            max_id: next()?.cast_signed(),
            next_max_id: next()?.cast_signed(),
            head: None,
        };
        let is_valid = magic == MAGIC && next()? == u64::from(crc32fast::hash(body));
        is_valid.then_some(record)
    }
}

/// Encodes the head of the hash chain. Without a head, the checksum does not match.
fn encode_head(head: Option<ChainHead>) -> [u8; HEAD_BYTES] {
    let mut bytes = [0; HEAD_BYTES];
    if let (Some(head), Some((body, checksum))) = (head, bytes.split_last_chunk_mut::<8>()) {
        let (hash, end) = body.split_at_mut(head.hash.len());
        hash.copy_from_slice(&head.hash);
        end.copy_from_slice(&head.end.to_le_bytes());
        *checksum = u64::from(crc32fast::hash(body)).to_le_bytes();
    }
    bytes
}

fn decode_head(bytes: &[u8; HEAD_BYTES]) -> Option<ChainHead> {
    let (body, checksum) = bytes.split_last_chunk::<8>()?;
    let (hash, end) = body.split_first_chunk::<32>()?;
    let is_valid = u64::from_le_bytes(*checksum) == u64::from(crc32fast::hash(body));
    let end = u64::from_le_bytes(end.try_into().ok()?);
    is_valid.then_some(ChainHead { hash: *hash, end })
}
