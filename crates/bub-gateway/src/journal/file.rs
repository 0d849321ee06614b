//! The file of the journal. When it is too large or after a failed write, a new file with the live records replaces it.
//! Live records are those of unfinished messages, undelivered replies and idempotency keys.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use bub_kernel::{Error, ErrorKind, Result};
use bub_tape::{
    Durability,
    fs::{Fs, FsFile, OpenMode},
};
use parking_lot::Mutex;

use super::{record::JournalRecord, state::JournalState};

/// Minimum size in bytes at which a new file with only the live records replaces the current file.
const ROTATE_BYTES: u64 = 16 * 1024 * 1024;

/// How long to wait for the lock file.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);

/// The current file of the journal. A lock file excludes other processes.
#[derive(Debug)]
pub(crate) struct JournalFile {
    fs: Arc<dyn Fs>,
    directory: PathBuf,
    durability: Durability,
    number: u64,
    file: Box<dyn FsFile>,
    length: u64,
    rotate_at: u64,
    /// Whether a write has failed. The content is then uncertain, so nothing more is appended.
    is_broken: bool,
    _lock: Box<dyn FsFile>,
}

/// Acquires the lock file. Returns `false` if another process still holds it after [`LOCK_TIMEOUT`]. The wait is for
/// the forked child of a killed gateway: it holds the lock until it executes its command.
fn try_lock_with_timeout(lock_file: &dyn FsFile) -> io::Result<bool> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    while !lock_file.try_lock()? {
        if Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(true)
}

/// What a gateway recovered from its journal at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalRecovery {
    /// Number of unfinished messages.
    pub messages: usize,
    /// Number of undelivered replies.
    pub replies: usize,
    /// Size of an incomplete last line in bytes. Its record was never acknowledged.
    pub torn_bytes: usize,
    /// Number of damaged lines. The file that contains them is kept.
    pub damaged_lines: usize,
}

impl JournalFile {
    /// Acquires the lock of the directory, reads the newest file, and writes the live records to a new file.
    pub(crate) fn open(
        fs: Arc<dyn Fs>,
        directory: &Path,
        durability: Durability,
    ) -> Result<(Self, JournalState, JournalRecovery)> {
        let failed = |action: &'static str| move |error| journal_error(directory, action, &error);
        fs.create_dir_all(directory).map_err(failed("create"))?;
        let lock_file = fs.open(&directory.join("lock"), OpenMode::Write);
        let lock_file = lock_file.map_err(failed("lock"))?;
        if !try_lock_with_timeout(&*lock_file).map_err(failed("lock"))? {
            let path = directory.display();
            let text = format!(
                "gateway directory `{path}` is in use: another gateway runs there; stop it or pass `--name`"
            );
            return Err(Error::new(ErrorKind::InUse, text));
        }
        let (live, recovered, numbers) = read_directory(&*fs, directory)?;
        let newest = numbers.last().copied();
        let number = newest.unwrap_or(0) + 1;
        let path = file_path(directory, number);
        let created = create_file(&*fs, &path, durability, &live, &[]);
        let (file, length) = created.map_err(failed("write"))?;
        for old_number in numbers {
            let path = file_path(directory, old_number);
            let outcome = if recovered.damaged_lines > 0 && Some(old_number) == newest {
                fs.rename(&path, &directory.join(format!("damaged-{old_number}.log")))
            } else {
                fs.remove(&path)
            };
            outcome.unwrap_or_else(|error| {
                tracing::warn!(file = %path.display(), %error, "journal.remove_failed");
            });
        }
        let journal_file = Self {
            fs,
            directory: directory.to_owned(),
            durability,
            number,
            file,
            length,
            rotate_at: ROTATE_BYTES.max(length * 2),
            is_broken: false,
            _lock: lock_file,
        };
        Ok((journal_file, live, recovered))
    }

    /// Appends lines. After a failure, writes a new file with the live records and the lines.
    pub(crate) fn append_lines(
        &mut self,
        lines: &[u8],
        live: &Mutex<JournalState>,
    ) -> io::Result<()> {
        if !self.is_broken {
            let written = self
                .file
                .write_all_at(lines, self.length)
                .and_then(|()| self.sync_if_durable());
            match written {
                Ok(()) => {
                    self.length += lines.len() as u64;
                    return Ok(());
                }
                // Next, try a new file.
                Err(error) => tracing::error!(%error, "journal.write_failed"),
            }
            self.is_broken = true;
        }
        self.replace_file(lines, live)
    }

    /// Starts a new file if the current one is too large.
    pub(crate) fn rotate_if_large(&mut self, live: &Mutex<JournalState>) {
        if self.length < self.rotate_at || self.is_broken {
            return;
        }
        if let Err(error) = self.replace_file(&[], live) {
            // The old file is still usable.
            tracing::warn!(%error, "journal.rotate_failed");
            self.rotate_at = self.length + ROTATE_BYTES;
        }
    }

    fn replace_file(&mut self, lines: &[u8], live: &Mutex<JournalState>) -> io::Result<()> {
        let (fs, directory) = (&*self.fs, &self.directory);
        let old_path = file_path(directory, self.number);
        let number = self.number + 1;
        let path = file_path(directory, number);
        (self.file, self.length) = create_file(fs, &path, self.durability, &live.lock(), lines)?;
        self.number = number;
        self.rotate_at = ROTATE_BYTES.max(self.length * 2);
        self.is_broken = false;
        if let Err(error) = fs.remove(&old_path) {
            tracing::warn!(file = %old_path.display(), %error, "journal.remove_failed");
        }
        Ok(())
    }

    fn sync_if_durable(&self) -> io::Result<()> {
        if self.durability == Durability::Always {
            self.file.sync()
        } else {
            Ok(())
        }
    }
}

/// Reads the live records from the newest journal file, and lists the numbers of all journal files. Changes nothing.
pub(super) fn read_directory(
    fs: &dyn Fs,
    directory: &Path,
) -> Result<(JournalState, JournalRecovery, Vec<u64>)> {
    let read_error = |error| journal_error(directory, "read", &error);
    let names = fs.read_dir(directory).map_err(read_error)?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| file_number(name)).collect();
    numbers.sort_unstable();
    let (mut live, mut recovered) = (JournalState::default(), JournalRecovery::default());
    if let Some(number) = numbers.last() {
        let file = fs.open(&file_path(directory, *number), OpenMode::Read);
        let file = file.map_err(read_error)?;
        let length = usize::try_from(file.stat().map_err(read_error)?.size).unwrap_or(usize::MAX);
        let bytes = file.read_range(0, length).map_err(read_error)?;
        replay_lines(&bytes, &mut live, &mut recovered);
    }
    recovered.messages = live.unfinished_messages().count();
    recovered.replies = live.undelivered_replies().count();
    Ok((live, recovered, numbers))
}

fn journal_error(directory: &Path, action: &str, error: &io::Error) -> Error {
    Error::unknown(format!(
        "cannot {action} the journal in `{}`: {error}; check the permissions and the disk space",
        directory.display()
    ))
}

/// Writes a new file with the live records and further lines, reads it back, and renames it to its final name.
fn create_file(
    fs: &dyn Fs,
    path: &Path,
    durability: Durability,
    live: &JournalState,
    lines: &[u8],
) -> io::Result<(Box<dyn FsFile>, u64)> {
    let mut bytes: Vec<u8> = live
        .to_records()
        .iter()
        .flat_map(JournalRecord::to_line)
        .collect();
    bytes.extend_from_slice(lines);
    let draft = path.with_extension("draft");
    let file = fs.open(&draft, OpenMode::Truncate)?;
    file.write_all_at(&bytes, 0)?;
    if durability == Durability::Always {
        file.sync()?;
    }
    if file.read_range(0, bytes.len())? != bytes {
        return Err(io::Error::other(
            "the written data could not be read back; check the disk",
        ));
    }
    fs.rename(&draft, path)?;
    if durability == Durability::Always
        && let Some(directory) = path.parent()
    {
        fs.sync_dir(directory)?;
    }
    Ok((file, bytes.len() as u64))
}

fn replay_lines(bytes: &[u8], into: &mut JournalState, recovered: &mut JournalRecovery) {
    let mut remaining = bytes;
    while let Some(end) = remaining.iter().position(|byte| *byte == b'\n') {
        let (line, after) = remaining.split_at(end);
        match JournalRecord::parse(line) {
            Some(record) => into.apply(record),
            None => recovered.damaged_lines += 1,
        }
        remaining = after.get(1..).unwrap_or_default();
    }
    recovered.torn_bytes = remaining.len();
}

/// Replays the lines of a journal and returns the lines that a new file would contain, for fuzzing. Before the replay,
/// adds a checksum to each line that is not a valid record.
#[doc(hidden)]
pub fn replay_for_fuzzing(lines: &[u8]) -> Vec<u8> {
    let (mut live, mut recovered) = (JournalState::default(), JournalRecovery::default());
    let sign = |line: &[u8]| match JournalRecord::parse(line) {
        Some(_) => [line, b"\n"].concat(),
        None => [
            format!("{:08x} ", crc32fast::hash(line)).as_bytes(),
            line,
            b"\n",
        ]
        .concat(),
    };
    let signed: Vec<u8> = lines.split(|byte| *byte == b'\n').flat_map(sign).collect();
    replay_lines(&signed, &mut live, &mut recovered);
    live.to_records()
        .iter()
        .flat_map(JournalRecord::to_line)
        .collect()
}

fn file_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("journal-{number:010}.log"))
}

fn file_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix("journal-")?.strip_suffix(".log")?;
    number.parse().ok()
}
