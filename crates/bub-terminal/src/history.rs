//! The history: lines that the user submitted in earlier chats and in this one. The history file has the format of the
//! Python version: each record is a comment with the time, and one `+` line per line of text.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use md5::{Digest as _, Md5};

/// Maximum number of bytes read from the end of the history file. Older lines are ignored.
const MAX_HISTORY_BYTES: u64 = 1024 * 1024;
/// Maximum number of lines kept in memory.
const MAX_HISTORY_LINES: usize = 5000;

/// The lines that the user submitted in a workspace, latest last.
#[derive(Debug)]
pub struct History {
    file: PathBuf,
    lines: Vec<String>,
}

impl History {
    /// Opens the history of a workspace. If the file cannot be read, returns an empty history and the error. The
    /// history can still be used. A missing file is not an error.
    pub fn open(home: &Path, workspace: &str) -> (Self, io::Result<()>) {
        let digest = Md5::digest(workspace.as_bytes());
        let file = home.join("history").join(format!("{digest:x}.history"));
        let mut history = Self {
            file,
            lines: Vec::new(),
        };
        let records = match read_history_file(&history.file) {
            Ok(text) => parse_records(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return (history, Err(error)),
        };
        for line in records {
            history.push_line(line);
        }
        (history, Ok(()))
    }

    /// Returns the path of the history file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns all lines, latest last.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Adds a line to the history and to its file. A line equal to the last one is ignored. If writing the file fails,
    /// the line is still kept in memory.
    pub fn add(&mut self, line: &str) -> io::Result<()> {
        if self.lines.last().is_some_and(|last| last == line) {
            return Ok(());
        }
        self.push_line(line.to_owned());
        let now = jiff::Zoned::now();
        let timestamp = now.strftime("%Y-%m-%d %H:%M:%S%.6f");
        let record = format!("\n# {timestamp}\n+{}\n", line.replace('\n', "\n+"));
        if let Some(directory) = self.file.parent() {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)?;
        }
        // Use a single write: another chat may append at the same time.
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.file)?
            .write_all(record.as_bytes())
    }

    /// Adds a line in memory, unless it equals the last line. Removes the oldest lines above `MAX_HISTORY_LINES`.
    fn push_line(&mut self, line: String) {
        if self.lines.last() != Some(&line) {
            self.lines.push(line);
        }
        if self.lines.len() > MAX_HISTORY_LINES {
            self.lines.drain(..self.lines.len() - MAX_HISTORY_LINES);
        }
    }
}

/// Reads the last `MAX_HISTORY_BYTES` bytes of a history file.
fn read_history_file(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_HISTORY_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(MAX_HISTORY_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the text of each record in a history file.
fn parse_records(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut record: Option<String> = None;
    for line in text.split('\n') {
        match (line.strip_prefix('+'), &mut record) {
            (Some(part), Some(record)) => {
                record.push('\n');
                record.push_str(part);
            }
            (Some(part), None) => record = Some(part.to_owned()),
            (None, _) => lines.extend(record.take()),
        }
    }
    lines.extend(record);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    // C.6, L6
    #[test]
    fn the_file_has_the_format_of_the_python_version() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("history")).unwrap();
        // md5 of "/work"
        let file = home
            .path()
            .join("history/1e0bb3bee2d09d2e4ad3523530d3b40c.history");
        let (mut history, read) = History::open(home.path(), "/work");
        assert!(read.is_ok() && history.lines().is_empty());
        assert_eq!(history.file(), file);
        let python = "\n# 2026-01-02 03:04:05.678901\n+hello\n\n# 2026-01-02 03:04:06\n+two\n+lines\n\n# x\n+two\n+lines\n";
        std::fs::write(history.file(), python).unwrap();
        history = History::open(home.path(), "/work").0;
        assert_eq!(history.lines(), ["hello", "two\nlines"]);
        history.add("three\n+four").unwrap();
        history.add("three\n+four").unwrap();
        let text = std::fs::read_to_string(history.file()).unwrap();
        let added = text.strip_prefix(python).unwrap();
        let (head, body) = added.split_at(added.find("\n+").unwrap() + 1);
        assert!(
            head.starts_with("\n# 20") && head.len() == "\n# 2026-01-02 03:04:05.678901\n".len(),
            "{head:?}"
        );
        assert_eq!(body, "+three\n++four\n");
        assert_eq!(
            History::open(home.path(), "/work")
                .0
                .lines()
                .last()
                .unwrap(),
            "three\n+four"
        );
    }

    #[test]
    fn errors_of_the_file_are_returned_and_lines_are_kept_in_memory() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("history"), "in the way").unwrap();
        let (mut history, read) = History::open(home.path(), "/work");
        assert!(read.is_err());
        assert!(history.add("kept").is_err());
        assert_eq!(history.lines(), ["kept"]);
    }
}
