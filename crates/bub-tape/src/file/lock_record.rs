//! The record in a tape's lock file: the committed length of the tape and the operation in progress.
//!
//! The record is small enough to be written at once and contains its own checksum. If it is missing or invalid,
//! recovery determines the state from the tape file.

use std::io;

use crate::fs::FsFile;

const MAGIC: u64 = u64::from_le_bytes(*b"bubtape1");
const RECORD_FIELDS: usize = 11;
const RECORD_BYTES: usize = RECORD_FIELDS * 8;

/// The operation of the last lock holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockPhase {
    /// No operation; the tape ends at `end`.
    Idle,
    /// Writing `length` bytes with checksum `crc` at `end`.
    Batch,
    /// Replacing the file with another one.
    Replace,
    /// No operation, but an fsync failed. Bytes after `synced` are in the file but may not be on disk.
    Suspect,
}

/// The content of a lock file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockRecord {
    /// Number of writes of the record, so that readers detect any change.
    pub(crate) sequence: u64,
    pub(crate) phase: LockPhase,
    /// The inode of the tape file.
    pub(crate) inode: u64,
    /// End of the committed part in bytes.
    pub(crate) end: u64,
    /// End of the part that is known to be on disk, in bytes.
    pub(crate) synced: u64,
    /// Length of the batch in bytes.
    pub(crate) length: u64,
    /// Checksum of the batch.
    pub(crate) crc: u32,
    /// Highest id of the committed part.
    pub(crate) max_id: i64,
    /// Highest id after the batch.
    pub(crate) next_max_id: i64,
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
        }
    }

    /// Returns the idle record that replaces this intent when its batch is written.
    pub(crate) fn to_committed(self) -> Self {
        let end = self.end + self.length;
        Self {
            sequence: self.sequence,
            synced: self.synced,
            ..Self::idle(self.inode, end, self.next_max_id)
        }
    }

    /// Reads the record. Returns `None` if it is missing or invalid.
    pub(crate) fn read(file: &dyn FsFile) -> io::Result<Option<Self>> {
        let mut bytes = [0; RECORD_BYTES];
        let filled = file.read_full_at(&mut bytes, 0)?;
        Ok(if filled == RECORD_BYTES {
            Self::decode(&bytes)
        } else {
            None
        })
    }

    pub(crate) fn write(&self, file: &dyn FsFile) -> io::Result<()> {
        file.write_all_at(&self.encode(), 0)
    }

    fn encode(&self) -> Vec<u8> {
        let phase = match self.phase {
            LockPhase::Idle => 0,
            LockPhase::Batch => 1,
            LockPhase::Replace => 2,
            LockPhase::Suspect => 3,
        };
        let fields = [
            MAGIC,
            self.sequence,
            phase,
            self.inode,
            self.end,
            self.synced,
            self.length,
            self.crc.into(),
            self.max_id.cast_unsigned(),
            self.next_max_id.cast_unsigned(),
        ];
        let mut bytes: Vec<u8> = fields
            .iter()
            .flat_map(|field| field.to_le_bytes())
            .collect();
        let checksum = u64::from(crc32fast::hash(&bytes));
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let (body, _) = bytes.split_at_checked(RECORD_BYTES - 8)?;
        let mut fields = [0; RECORD_FIELDS];
        for (field, chunk) in fields.iter_mut().zip(bytes.chunks_exact(8)) {
            *field = u64::from_le_bytes(chunk.try_into().ok()?);
        }
        let [
            magic,
            sequence,
            phase,
            inode,
            end,
            synced,
            length,
            crc,
            max_id,
            next_max_id,
            checksum,
        ] = fields;
        let phase = match phase {
            0 => LockPhase::Idle,
            1 => LockPhase::Batch,
            2 => LockPhase::Replace,
            3 => LockPhase::Suspect,
            _ => return None,
        };
        let is_valid = magic == MAGIC && checksum == u64::from(crc32fast::hash(body));
        is_valid.then_some(Self {
            sequence,
            phase,
            inode,
            end,
            synced,
            length,
            crc: u32::try_from(crc).ok()?,
            max_id: max_id.cast_signed(),
            next_max_id: next_max_id.cast_signed(),
        })
    }
}
