//! Reads lines of a file of any size in bounded memory.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
};

use bub_kernel::{Error, ErrorKind, Result};

use crate::files::file_error;

/// Maximum bytes returned per call. The model reads the rest with `offset`.
const MAX_READ_BYTES: usize = 1 << 20;
/// Number of bytes at the start of a file that are searched for a zero byte. A file with a zero byte is not text.
const BINARY_PROBE_BYTES: usize = 8 << 10;

/// Returns at most `limit` lines, starting with line `first`, joined with `\n`.
pub(super) fn read_lines(
    file: impl Read,
    path: &Path,
    first: u64,
    limit: Option<u64>,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<String> {
    let read_error = |error| file_error("read", path, &error);
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let head = reader.fill_buf().map_err(read_error)?;
    if head.iter().take(BINARY_PROBE_BYTES).any(|byte| *byte == 0) {
        let problem = format!(
            "{} is not a text file; inspect it with a program",
            path.display()
        );
        return Err(Error::invalid_input(problem));
    }
    let end = limit.map_or(u64::MAX, |limit| first.saturating_add(limit));
    let mut text = Vec::new();
    let mut line = 0;
    let mut is_within_line = false;
    let mut is_truncated = false;
    while line < end && !is_truncated {
        if is_cancelled() {
            return Err(Error::new(ErrorKind::Cancelled, "reading was cancelled"));
        }
        let buffer = reader.fill_buf().map_err(read_error)?;
        if buffer.is_empty() {
            break;
        }
        let newline = memchr::memchr(b'\n', buffer);
        let used = newline.map_or(buffer.len(), |at| at + 1);
        if line >= first {
            let part = buffer.get(..used).unwrap_or_default();
            let available = MAX_READ_BYTES - text.len();
            text.extend_from_slice(part.get(..available.min(used)).unwrap_or_default());
            is_truncated = available < used;
        }
        reader.consume(used);
        is_within_line = newline.is_none();
        line += u64::from(!is_within_line);
    }
    let lines = line + u64::from(is_within_line);
    if lines <= first && first > 0 {
        return Ok(format!("[the file has {lines} lines]"));
    }
    Ok(format_lines(text, is_truncated.then_some((first, line))))
}

/// Returns the bytes as text, with notes for the model. If the text is truncated, `truncated` has the number of its
/// first line and of the line where reading stopped.
fn format_lines(mut bytes: Vec<u8>, truncated: Option<(u64, u64)>) -> String {
    let mut notes = Vec::new();
    if let Some((first, line)) = truncated {
        match memchr::memrchr(b'\n', &bytes).filter(|_| line > first) {
            Some(at) => {
                let complete = bytes.get(..=at).unwrap_or_default();
                let next = first + memchr::memchr_iter(b'\n', complete).count() as u64;
                bytes.truncate(at + 1);
                notes.push(format!("[more lines follow: continue with offset={next}]"));
            }
            None => notes.push(format!(
                "[line {first} is truncated: it is too long to read completely]"
            )),
        }
    }
    let has_end = bytes.last() == Some(&b'\n');
    if has_end {
        bytes.pop();
    }
    let mut text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            // Truncation may have split the last character; then the file itself is valid.
            let (problem, mut bytes) = (error.utf8_error(), error.into_bytes());
            if problem.error_len().is_some() || truncated.is_none() || has_end {
                notes.push("[bytes that are not UTF-8 are shown as \u{fffd}]".to_owned());
            } else {
                bytes.truncate(problem.valid_up_to());
            }
            String::from_utf8_lossy(&bytes).into_owned()
        }
    };
    if text.contains('\r') {
        text = text.replace("\r\n", "\n");
        if has_end && text.ends_with('\r') {
            text.pop();
        }
    }
    for note in notes {
        text.push('\n');
        text.push_str(&note);
    }
    text
}
