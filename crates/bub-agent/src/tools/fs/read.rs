//! Lines of a file of any size, in bounded memory.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

use bub_kernel::{Error, ErrorKind, Result};

use super::failure;

/// Longer answers help nobody; the rest is read with another call.
const MAX_READ_BYTES: usize = 1 << 20;
/// Text has no zero byte, and what is not text shows one early.
const BINARY_PROBE_BYTES: usize = 8 << 10;

/// The lines from `first` on, joined with `\n`, at most `limit` of them.
pub(super) fn lines(
    file: &Path,
    first: u64,
    limit: Option<u64>,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<String> {
    let wrong = |error| failure("read", file, &error);
    let mut reader = BufReader::with_capacity(1 << 16, File::open(file).map_err(wrong)?);
    let head = reader.fill_buf().map_err(wrong)?;
    if head.iter().take(BINARY_PROBE_BYTES).any(|byte| *byte == 0) {
        let problem = format!(
            "{} is not a text file: look at it with a program",
            file.display()
        );
        return Err(Error::invalid_input(problem));
    }
    let end = limit.map_or(u64::MAX, |limit| first.saturating_add(limit));
    let mut text = Vec::new();
    let mut line = 0;
    let mut is_inside = false;
    let mut is_cut = false;
    while line < end && !is_cut {
        if is_cancelled() {
            return Err(Error::new(ErrorKind::Cancelled, "reading was cancelled"));
        }
        let buffer = reader.fill_buf().map_err(wrong)?;
        if buffer.is_empty() {
            break;
        }
        let newline = memchr::memchr(b'\n', buffer);
        let used = newline.map_or(buffer.len(), |at| at + 1);
        if line >= first {
            let part = buffer.get(..used).unwrap_or_default();
            let room = MAX_READ_BYTES - text.len();
            text.extend_from_slice(part.get(..room.min(used)).unwrap_or_default());
            is_cut = room < used;
        }
        reader.consume(used);
        is_inside = newline.is_none();
        line += u64::from(!is_inside);
    }
    if line + u64::from(is_inside) <= first && first > 0 {
        return Ok(format!(
            "[the file has {} lines]",
            line + u64::from(is_inside)
        ));
    }
    Ok(present(text, is_cut.then_some((first, line))))
}

/// The bytes as text, with what the model must know about it.
fn present(mut bytes: Vec<u8>, cut: Option<(u64, u64)>) -> String {
    let mut notes = Vec::new();
    if let Some((first, line)) = cut {
        match memchr::memrchr(b'\n', &bytes).filter(|_| line > first) {
            Some(at) => {
                let whole = bytes.get(..=at).unwrap_or_default();
                let next = first + memchr::memchr_iter(b'\n', whole).count() as u64;
                bytes.truncate(at + 1);
                notes.push(format!("[more lines follow: read on with offset={next}]"));
            }
            None => notes.push(format!(
                "[line {first} goes on: it is too long to be read whole]"
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
            // A character may have been cut at the end of the answer; that is no damage of the file.
            let bytes = error.as_bytes();
            let is_damaged = error.utf8_error().error_len().is_some() || cut.is_none() || has_end;
            if is_damaged {
                notes.push("[bytes that are not UTF-8 are shown as \u{fffd}]".to_owned());
                String::from_utf8_lossy(bytes).into_owned()
            } else {
                let good = bytes
                    .get(..error.utf8_error().valid_up_to())
                    .unwrap_or_default();
                String::from_utf8_lossy(good).into_owned()
            }
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
