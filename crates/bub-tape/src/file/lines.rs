//! Reads the lines of a byte range of a file, in either direction and with bounded memory.

use std::io;

use crate::fs::FsFile;

/// Size of the first read. It is small because many callers need only one entry.
const INITIAL_CHUNK_BYTES: usize = 16 * 1024;
/// Maximum size of a read. Reads grow by a factor of four up to this size.
const MAX_CHUNK_BYTES: usize = 512 * 1024;

/// Reads the lines of a range in file order.
#[derive(Debug)]
pub(crate) struct ForwardLines {
    offset: u64,
    end: u64,
    chunk: usize,
    carry: Vec<u8>,
}

impl ForwardLines {
    pub(crate) fn new(start: u64, end: u64) -> Self {
        Self {
            offset: start,
            end,
            chunk: INITIAL_CHUNK_BYTES,
            carry: Vec::new(),
        }
    }

    /// Creates a reader that starts with large reads, for scanning the complete range.
    pub(crate) fn with_large_reads(start: u64, end: u64) -> Self {
        Self {
            chunk: MAX_CHUNK_BYTES,
            ..Self::new(start, end)
        }
    }

    /// Reads the next chunk and calls `on_line` with the offset and bytes of each line that the chunk completes.
    ///
    /// Returns `false` at the end of the range. The last line may lack its newline.
    pub(crate) fn read_chunk(
        &mut self,
        file: &dyn FsFile,
        mut on_line: impl FnMut(u64, &[u8]),
    ) -> io::Result<bool> {
        let length = usize::try_from(self.end.saturating_sub(self.offset))
            .unwrap_or(usize::MAX)
            .min(self.chunk);
        self.chunk = (self.chunk * 4).min(MAX_CHUNK_BYTES);
        let mut line_start = self.offset - self.carry.len() as u64;
        let carried = self.carry.len();
        self.carry.resize(carried + length, 0);
        let filled = match self.carry.get_mut(carried..) {
            Some(new_bytes) => file.read_full_at(new_bytes, self.offset)?,
            None => 0,
        };
        self.carry.truncate(carried + filled);
        self.offset += filled as u64;
        let is_finished = filled < length || self.offset >= self.end;
        let mut remaining = self.carry.as_slice();
        // The carried bytes contain no newline.
        let mut searched = carried;
        while let Some(length) = remaining
            .get(searched..)
            .and_then(|new_bytes| memchr::memchr(b'\n', new_bytes))
        {
            let Some((line, after)) = remaining.split_at_checked(searched + length + 1) else {
                break;
            };
            on_line(line_start, line);
            line_start += line.len() as u64;
            remaining = after;
            searched = 0;
        }
        if is_finished && !remaining.is_empty() {
            on_line(line_start, remaining);
            remaining = &[];
        }
        let carried_bytes = remaining.len();
        let drop = self.carry.len() - carried_bytes;
        self.carry.drain(..drop);
        Ok(!is_finished)
    }
}

/// Reads the lines of a range from its last line to its first.
#[derive(Debug)]
pub(crate) struct BackwardLines {
    start: u64,
    offset: u64,
    chunk: usize,
    carry: Vec<u8>,
}

impl BackwardLines {
    pub(crate) fn new(start: u64, end: u64) -> Self {
        Self {
            start,
            offset: end,
            chunk: INITIAL_CHUNK_BYTES,
            carry: Vec::new(),
        }
    }

    /// Reads the previous chunk and calls `on_line` with the offset and bytes of each line in it, last line first.
    ///
    /// Returns `false` at the start of the range.
    pub(crate) fn read_chunk(
        &mut self,
        file: &dyn FsFile,
        mut on_line: impl FnMut(u64, &[u8]),
    ) -> io::Result<bool> {
        let length = usize::try_from(self.offset.saturating_sub(self.start))
            .unwrap_or(usize::MAX)
            .min(self.chunk);
        self.chunk = (self.chunk * 4).min(MAX_CHUNK_BYTES);
        self.offset -= length as u64;
        let mut block = file.read_range(self.offset, length)?;
        if block.len() < length {
            return Ok(false);
        }
        block.append(&mut self.carry);
        let is_finished = self.offset <= self.start;
        let mut remaining = block.as_slice();
        loop {
            // A newline at the end terminates the last line; it does not start another one.
            let body = remaining.strip_suffix(b"\n").unwrap_or(remaining);
            let Some(newline) = memchr::memrchr(b'\n', body) else {
                break;
            };
            let Some((before, line)) = remaining.split_at_checked(newline + 1) else {
                break;
            };
            on_line(self.offset + before.len() as u64, line);
            remaining = before;
        }
        if is_finished {
            if !remaining.is_empty() {
                on_line(self.offset, remaining);
            }
        } else {
            self.carry = remaining.to_vec();
        }
        Ok(!is_finished)
    }
}

/// Returns the start of the line that contains the byte before `end`.
pub(crate) fn start_of_last_line(file: &dyn FsFile, end: u64) -> io::Result<u64> {
    let mut offset = end;
    while offset > 0 {
        let length = offset.min(INITIAL_CHUNK_BYTES as u64);
        offset -= length;
        let block = file.read_range(
            offset,
            usize::try_from(length).unwrap_or(INITIAL_CHUNK_BYTES),
        )?;
        // The byte before `end` may be the newline of this line.
        let searched = if offset + length == end {
            block.split_last().map_or(&[][..], |(_, head)| head)
        } else {
            &block
        };
        if let Some(newline) = memchr::memrchr(b'\n', searched) {
            return Ok(offset + newline as u64 + 1);
        }
    }
    Ok(0)
}
