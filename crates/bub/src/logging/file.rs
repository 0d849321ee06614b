//! The log file: private, and never larger than it may be. Several processes may share one.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// How many full files are kept beside the one that is written.
const KEPT: u32 = 3;

/// A file that is put aside when it is full: `bub.log`, `bub.log.1`, …
pub(super) struct LogFile {
    path: PathBuf,
    largest: u64,
    file: Option<File>,
}

impl LogFile {
    /// Opened when there is something to write.
    pub(super) fn new(path: PathBuf, largest: u64) -> Self {
        Self { path, largest, file: None }
    }

    /// Writes a line. One that cannot be written is lost: the log must not stop what it tells of.
    pub(super) fn write(&mut self, line: &str) {
        if self.try_write(line.as_bytes()).is_err() {
            self.file = None;
        }
    }

    fn try_write(&mut self, line: &[u8]) -> io::Result<()> {
        let file = match self.file.take() {
            Some(file) => file,
            None => open(&self.path)?,
        };
        let file = self.rotated(file, line.len() as u64)?;
        self.file.insert(file).write_all(line)
    }

    fn rotated(&self, mut file: File, more: u64) -> io::Result<File> {
        loop {
            let own = file.metadata()?;
            if own.len() == 0 || own.len() + more <= self.largest {
                return Ok(file);
            }
            // Another process may have done it already, and is done when the lock is there.
            file.lock()?;
            let current = fs::metadata(&self.path);
            if current.is_ok_and(|current| (current.dev(), current.ino()) == (own.dev(), own.ino())) {
                for number in (0..KEPT).rev() {
                    // Those in between may not exist yet.
                    let _ = fs::rename(numbered(&self.path, number), numbered(&self.path, number + 1));
                }
            }
            file = open(&self.path)?;
        }
    }
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = OsString::from(path);
    if number > 0 {
        name.push(format!(".{number}"));
    }
    PathBuf::from(name)
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_full_file_is_put_aside_and_old_ones_go() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("logs/bub.log");
        let (mut one, mut other) = (LogFile::new(path.clone(), 20), LogFile::new(path.clone(), 20));
        for number in 0..40 {
            // Two processes take turns.
            let file = if number % 3 == 0 { &mut other } else { &mut one };
            file.write(&format!("line {number:02}\n"));
        }
        let names = [path.clone(), numbered(&path, 1), numbered(&path, 2), numbered(&path, 3)];
        let lines: String = names.iter().rev().map(|name| fs::read_to_string(name).unwrap()).collect();
        let count = lines.lines().count();
        let last: Vec<_> = (40 - count..40).map(|number| format!("line {number:02}")).collect();
        assert_eq!(lines.lines().collect::<Vec<_>>(), last, "in order, none missing");
        assert!(count >= 6, "{lines}");
        assert!(!numbered(&path, 4).exists());
        for name in names {
            let metadata = fs::metadata(name).unwrap();
            assert!(metadata.len() <= 20);
            assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_stops_nothing() {
        LogFile::new(PathBuf::from("/dev/null/no/such.log"), 20).write("line\n");
    }
}
