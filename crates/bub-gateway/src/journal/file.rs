//! The file of the journal. A new one takes its place when it has grown, or when a write has failed.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bub_kernel::{Error, ErrorKind, Result};
use bub_tape::{
    Durability,
    fs::{Fs, FsFile, OpenMode},
};

use super::{lock, record::JournalRecord, state::JournalState};

/// From this size on a file is replaced by what is live.
const ROTATE_BYTES: u64 = 16 * 1024 * 1024;

/// So long a lock is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);

/// The file in use. Exactly one at a time; the lock keeps other processes out.
#[derive(Debug)]
pub(crate) struct JournalFile {
    fs: Arc<dyn Fs>,
    directory: PathBuf,
    durability: Durability,
    number: u64,
    file: Box<dyn FsFile>,
    length: u64,
    rotate_at: u64,
    /// A write has failed: nobody knows what is in the file, so nothing is added to it.
    is_broken: bool,
    _lock: Box<dyn FsFile>,
}

/// Takes the lock. A process that was killed while it started a command leaves a copy of itself behind, which holds the
/// lock until it has become that command: a moment, which is waited for.
fn try_lock(guard: &dyn FsFile) -> io::Result<bool> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    while !guard.try_lock()? {
        if Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(true)
}

/// What was found at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalRecovery {
    /// Messages that are not answered.
    pub messages: usize,
    /// Replies that are not delivered.
    pub replies: usize,
    /// Bytes of a last line that was not written to its end, and so was never acknowledged.
    pub torn_bytes: usize,
    /// Lines that were damaged; the file that has them is kept.
    pub damaged_lines: usize,
}

impl JournalFile {
    /// Takes the lock, reads what is there and begins a new file with what is live.
    pub(crate) fn open(
        fs: Arc<dyn Fs>,
        directory: &Path,
        durability: Durability,
    ) -> Result<(Self, JournalState, JournalRecovery)> {
        let failed = |what: &str, error: io::Error| failed(directory, what, &error);
        fs.create_dir_all(directory)
            .map_err(|error| failed("made", error))?;
        let guard = fs
            .open(&directory.join("lock"), OpenMode::Write)
            .map_err(|error| failed("locked", error))?;
        if !try_lock(&*guard).map_err(|error| failed("locked", error))? {
            let path = directory.display();
            let text = format!("another gateway uses {path}; stop it, or give this one a --name");
            return Err(Error::new(ErrorKind::InUse, text));
        }
        let (live, recovered, numbers) = read(&*fs, directory)?;
        let newest = numbers.last().copied();
        let number = newest.unwrap_or(0) + 1;
        let (file, length) = begin(&*fs, &path_of(directory, number), durability, &live, &[])
            .map_err(|error| failed("written", error))?;
        for old in numbers {
            let path = path_of(directory, old);
            let outcome = if recovered.damaged_lines > 0 && Some(old) == newest {
                fs.rename(&path, &directory.join(format!("damaged-{old}.log")))
            } else {
                fs.remove(&path)
            };
            outcome.unwrap_or_else(|error| {
                tracing::warn!(file = %path.display(), %error, "journal.remove_failed");
            });
        }
        let segment = Self {
            fs,
            directory: directory.to_owned(),
            durability,
            number,
            file,
            length,
            rotate_at: ROTATE_BYTES.max(length * 2),
            is_broken: false,
            _lock: guard,
        };
        Ok((segment, live, recovered))
    }

    /// Adds lines, or, after a failure, begins a new file with them.
    pub(crate) fn write(&mut self, lines: &[u8], live: &Mutex<JournalState>) -> io::Result<()> {
        if !self.is_broken {
            let written = self
                .file
                .write_all_at(lines, self.length)
                .and_then(|()| self.sync());
            match written {
                Ok(()) => {
                    self.length += lines.len() as u64;
                    return Ok(());
                }
                // A new file is tried next.
                Err(error) => tracing::error!(%error, "journal.write_failed"),
            }
            self.is_broken = true;
        }
        self.replace(lines, live)
    }

    /// Begins a new file when this one is big.
    pub(crate) fn rotate(&mut self, live: &Mutex<JournalState>) {
        if self.length < self.rotate_at || self.is_broken {
            return;
        }
        if let Err(error) = self.replace(&[], live) {
            // The old one is as good as before.
            tracing::warn!(%error, "journal.rotate_failed");
            self.rotate_at = self.length + ROTATE_BYTES;
        }
    }

    fn replace(&mut self, lines: &[u8], live: &Mutex<JournalState>) -> io::Result<()> {
        let (fs, directory) = (&*self.fs, &self.directory);
        let old = path_of(directory, self.number);
        let number = self.number + 1;
        let begun = begin(
            fs,
            &path_of(directory, number),
            self.durability,
            &lock(live),
            lines,
        )?;
        (self.file, self.length) = begun;
        self.number = number;
        self.rotate_at = ROTATE_BYTES.max(self.length * 2);
        self.is_broken = false;
        if let Err(error) = fs.remove(&old) {
            tracing::warn!(file = %old.display(), %error, "journal.remove_failed");
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        if self.durability == Durability::Always {
            self.file.sync()
        } else {
            Ok(())
        }
    }
}

/// Reads what is live, and the numbers of the files there are; changes nothing.
pub(super) fn read(
    fs: &dyn Fs,
    directory: &Path,
) -> Result<(JournalState, JournalRecovery, Vec<u64>)> {
    let failed = |error| failed(directory, "read", &error);
    let mut numbers: Vec<u64> = fs
        .read_dir(directory)
        .map_err(failed)?
        .iter()
        .filter_map(|name| number_of(name))
        .collect();
    numbers.sort_unstable();
    let (mut live, mut recovered) = (JournalState::default(), JournalRecovery::default());
    if let Some(number) = numbers.last() {
        let file = fs
            .open(&path_of(directory, *number), OpenMode::Read)
            .map_err(failed)?;
        let length = usize::try_from(file.stat().map_err(failed)?.size).unwrap_or(usize::MAX);
        replay(
            &file.read_range(0, length).map_err(failed)?,
            &mut live,
            &mut recovered,
        );
    }
    recovered.messages = live.inbounds().count();
    recovered.replies = live.outgoing().count();
    Ok((live, recovered, numbers))
}

fn failed(directory: &Path, what: &str, error: &io::Error) -> Error {
    Error::unknown(format!(
        "the journal in {} cannot be {what}: {error}",
        directory.display()
    ))
}

/// Writes a file with all that is live and some lines more, reads it back, and gives it its name.
fn begin(
    fs: &dyn Fs,
    path: &Path,
    durability: Durability,
    live: &JournalState,
    lines: &[u8],
) -> io::Result<(Box<dyn FsFile>, u64)> {
    let mut bytes: Vec<u8> = live
        .records()
        .iter()
        .flat_map(JournalRecord::line)
        .collect();
    bytes.extend_from_slice(lines);
    let draft = path.with_extension("draft");
    let file = fs.open(&draft, OpenMode::Truncate)?;
    file.write_all_at(&bytes, 0)?;
    if durability == Durability::Always {
        file.sync()?;
    }
    if file.read_range(0, bytes.len())? != bytes {
        return Err(io::Error::other("what was written does not read back"));
    }
    fs.rename(&draft, path)?;
    if durability == Durability::Always
        && let Some(directory) = path.parent()
    {
        fs.sync_dir(directory)?;
    }
    Ok((file, bytes.len() as u64))
}

fn replay(bytes: &[u8], into: &mut JournalState, recovered: &mut JournalRecovery) {
    let mut rest = bytes;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let (line, after) = rest.split_at(end);
        match JournalRecord::parse(line) {
            Some(record) => into.apply(record),
            None => recovered.damaged_lines += 1,
        }
        rest = after.get(1..).unwrap_or_default();
    }
    recovered.torn_bytes = rest.len();
}

/// The lines of a new file after these, each of which gets a checksum if it has none that is right. For those who try
/// any bytes.
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
    replay(&signed, &mut live, &mut recovered);
    live.records()
        .iter()
        .flat_map(JournalRecord::line)
        .collect()
}

fn path_of(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("journal-{number:010}.log"))
}

fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix("journal-")?
        .strip_suffix(".log")?
        .parse()
        .ok()
}
