//! Reads the lines of a byte range of a file with bounded memory.

use std::{
    io::{self, BufRead, BufReader, Read},
    ops::Range,
};

use super::context::length_to_usize;
use crate::{codec, fs::FsFile};

/// Number of bytes to read at a time when the complete range is needed.
const SCAN_BYTES: usize = 512 * 1024;
/// Number of bytes to read at a time when one line is needed.
const LINE_BYTES: u64 = 16 * 1024;

/// Reads a byte range of a file from its start.
struct RangeReader<'a> {
    file: &'a dyn FsFile,
    range: Range<u64>,
}

impl Read for RangeReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = length_to_usize(self.range.end.saturating_sub(self.range.start));
        let length = rest.min(buffer.len());
        let buffer = buffer.get_mut(..length).unwrap_or_default();
        let count = self.file.read_at(buffer, self.range.start)?;
        self.range.start += count as u64;
        Ok(count)
    }
}

/// Returns a reader of a byte range that reads large parts of it at a time.
pub(crate) fn scan(file: &dyn FsFile, range: Range<u64>) -> impl BufRead {
    // The reader clears its complete buffer once, so a short range gets a short buffer.
    let length = length_to_usize(range.end.saturating_sub(range.start));
    BufReader::with_capacity(length.min(SCAN_BYTES), RangeReader { file, range })
}

/// Returns the byte offset at which the line that starts at `range.start` ends.
pub(crate) fn end_of_first_line(file: &dyn FsFile, range: Range<u64>) -> io::Result<u64> {
    let start = range.start;
    let reader = RangeReader { file, range };
    let length = BufReader::with_capacity(length_to_usize(LINE_BYTES), reader).skip_until(b'\n')?;
    Ok(start + length as u64)
}

/// Returns the end of the last complete line of a file. A last line without a newline is complete if it can be decoded.
/// A partly written line cannot be decoded.
pub(crate) fn end_of_complete_lines(file: &dyn FsFile, size: u64) -> io::Result<u64> {
    if ends_with_newline(file, size)? {
        return Ok(size);
    }
    let start = start_of_last_line(file, size)?;
    let tail = file.read_range(start, length_to_usize(size - start))?;
    Ok(if codec::decode(&tail).is_some() {
        size
    } else {
        start
    })
}

/// Returns whether the file is empty or its last byte is a newline.
pub(crate) fn ends_with_newline(file: &dyn FsFile, size: u64) -> io::Result<bool> {
    match size.checked_sub(1) {
        Some(last) => Ok(file.read_range(last, 1)? == b"\n"),
        None => Ok(true),
    }
}

/// Returns the byte offset after the last newline before `end`.
fn start_of_last_line(file: &dyn FsFile, end: u64) -> io::Result<u64> {
    let mut offset = end;
    while offset > 0 {
        let length = offset.min(LINE_BYTES);
        offset -= length;
        let block = file.read_range(offset, length_to_usize(length))?;
        if let Some(newline) = memchr::memrchr(b'\n', &block) {
            return Ok(offset + newline as u64 + 1);
        }
    }
    Ok(0)
}
