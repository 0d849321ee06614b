//! The record in a tape's lock file: how far the tape is written, and what is being done to it.
//!
//! It is small enough to be written at once and carries its own checksum. One that cannot be read means no
//! more than that nothing is known: the tape itself is then looked at.

use std::io;

use crate::fs::FsFile;

const MAGIC: u64 = u64::from_le_bytes(*b"bubtape1");
const RECORD_FIELDS: usize = 11;
const RECORD_BYTES: usize = RECORD_FIELDS * 8;

/// What the last holder of the lock was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockPhase {
    /// Nothing: the tape ends at `end`.
    Idle,
    /// Writing `length` bytes with checksum `crc` at `end`.
    Batch,
    /// Replacing the file by another one.
    Replace,
    /// Nothing, but bytes from `synced` on may not have reached the disk although they are in the file.
    Suspect,
}

/// The content of a lock file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockRecord {
    /// Counts the writes of the record, so that a reader notices any change.
    pub(crate) sequence: u64,
    pub(crate) phase: LockPhase,
    /// The file it speaks of.
    pub(crate) inode: u64,
    /// The end of the committed part.
    pub(crate) end: u64,
    /// The end of the part that is known to be on the disk.
    pub(crate) synced: u64,
    pub(crate) length: u64,
    pub(crate) crc: u32,
    /// The highest id of the committed part.
    pub(crate) max_id: i64,
    /// The highest id once the batch is complete.
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

    /// What the intent of a batch becomes once its bytes are written.
    pub(crate) fn done(self) -> Self {
        let end = self.end + self.length;
        Self {
            sequence: self.sequence,
            synced: self.synced,
            ..Self::idle(self.inode, end, self.next_max_id)
        }
    }

    /// Reads the record; `None` when there is none that makes sense.
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
        let sound = magic == MAGIC && checksum == u64::from(crc32fast::hash(body));
        sound.then_some(Self {
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
