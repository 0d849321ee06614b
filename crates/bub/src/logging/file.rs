//! The log file: readable by its owner only and rotated by size. Several processes may share a file.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::{
        DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
    },
    path::{Path, PathBuf},
};

use rustix::fs::{Access, access};

/// Number of rotated files that are kept.
const MAX_ROTATED_FILES: u32 = 3;

/// A log file that is rotated when it is full: `bub.log` becomes `bub.log.1`, and so on.
pub(super) struct LogFile {
    path: PathBuf,
    max_bytes: u64,
    file: Option<File>,
    has_failed: bool,
}

impl LogFile {
    /// Creates a log file with this path. The first write opens the file.
    pub(super) fn new(path: PathBuf, max_bytes: u64) -> Self {
        Self {
            path,
            max_bytes,
            file: None,
            has_failed: false,
        }
    }

    /// Writes a line. Returns the first error of this file. Later errors are ignored and their
    /// lines are lost, because logging must not stop the program.
    pub(super) fn write(&mut self, line: &str) -> io::Result<()> {
        match self.try_write(line.as_bytes()) {
            Err(error) if !std::mem::replace(&mut self.has_failed, true) => Err(error),
            _ => Ok(()),
        }
    }

    fn try_write(&mut self, line: &[u8]) -> io::Result<()> {
        let file = match self.file.take() {
            Some(file) => file,
            None => open_private(&self.path)?,
        };
        let file = self.rotate_if_full(file, line.len() as u64)?;
        (&file).write_all(line)?;
        self.file = Some(file);
        Ok(())
    }

    /// Returns the file to write `added_bytes` to. Rotates a full file and opens a new one.
    fn rotate_if_full(&self, mut file: File, added_bytes: u64) -> io::Result<File> {
        loop {
            let metadata = file.metadata()?;
            if metadata.len() == 0 || metadata.len() + added_bytes <= self.max_bytes {
                return Ok(file);
            }
            // Another process may be rotating the file. It holds the lock until it is done.
            file.lock()?;
            let identity = |file: fs::Metadata| (file.dev(), file.ino());
            if fs::metadata(&self.path).is_ok_and(|file| identity(file) == identity(metadata)) {
                for number in (0..MAX_ROTATED_FILES).rev() {
                    let [from, to] = [number, number + 1].map(|n| rotated_path(&self.path, n));
                    // Ignore errors: some of the rotated files may not exist yet.
                    let _ = fs::rename(from, to);
                }
            }
            file = open_private(&self.path)?;
        }
    }
}

/// Returns the path of a rotated file. Number 0 is the current file.
fn rotated_path(path: &Path, number: u32) -> PathBuf {
    let mut name = OsString::from(path);
    if number > 0 {
        name.push(format!(".{number}"));
    }
    PathBuf::from(name)
}

/// Returns why a path cannot be the log file, if it cannot. Creates no files.
pub(super) fn unusable_reason(path: &Path, config: &Path) -> Option<String> {
    let is_config = path == config
        || fs::canonicalize(path)
            .is_ok_and(|path| fs::canonicalize(config).is_ok_and(|config| path == config));
    if is_config {
        return Some("it is the config file".to_owned());
    }
    match fs::metadata(path) {
        Ok(_) => open_private(path).err().map(|error| error.to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let directory = path.ancestors().skip(1).find(|path| path.exists())?;
            let error = access(directory, Access::WRITE_OK | Access::EXEC_OK).err()?;
            Some(format!(
                "{}: {}",
                directory.display(),
                io::Error::from(error)
            ))
        }
        Err(error) => Some(error.to_string()),
    }
}

/// Opens a log file for appending and makes it readable by its owner only. Fails if the path is not
/// a regular file, because opening a pipe would block.
fn open_private(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(io::Error::other("it is not a regular file"));
    }
    let directory = path.parent();
    if let Some(directory) = directory.filter(|directory| !directory.as_os_str().is_empty()) {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(directory)?;
    }
    let mut options = File::options();
    let file = options.append(true).create(true).mode(0o600).open(path)?;
    if file.metadata()?.mode() & 0o077 != 0 {
        // Ignore the error: the mode of another user's file cannot be changed.
        let _ = file.set_permissions(fs::Permissions::from_mode(0o600));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_is_put_aside_and_old_ones_go() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("logs/bub.log");
        let (mut first, mut second) = (
            LogFile::new(path.clone(), 20),
            LogFile::new(path.clone(), 20),
        );
        for number in 0..40 {
            // Two processes write alternately.
            let file = if number % 3 == 0 {
                &mut second
            } else {
                &mut first
            };
            file.write(&format!("line {number:02}\n")).unwrap();
        }
        let names = [
            path.clone(),
            rotated_path(&path, 1),
            rotated_path(&path, 2),
            rotated_path(&path, 3),
        ];
        let lines: String = names
            .iter()
            .rev()
            .map(|name| fs::read_to_string(name).unwrap())
            .collect();
        let count = lines.lines().count();
        let last: Vec<_> = (40 - count..40)
            .map(|number| format!("line {number:02}"))
            .collect();
        assert_eq!(
            lines.lines().collect::<Vec<_>>(),
            last,
            "in order, none missing"
        );
        assert!(count >= 6, "{lines}");
        assert!(!rotated_path(&path, 4).exists());
        for name in names {
            let metadata = fs::metadata(name).unwrap();
            assert!(metadata.len() <= 20);
            assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_stops_nothing_and_fails_once() {
        let mut file = LogFile::new(PathBuf::from("/dev/null/no/such.log"), 20);
        file.write("line\n").unwrap_err();
        file.write("line\n").unwrap();
    }
}
