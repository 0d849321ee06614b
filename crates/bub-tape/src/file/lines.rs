//! Lines of a stretch of a file, from either end, with bounded memory.

use std::io;

use crate::fs::FsFile;

/// The first read is small because many callers want one entry; later ones grow.
const INITIAL_CHUNK_BYTES: usize = 16 * 1024;
const MAX_CHUNK_BYTES: usize = 512 * 1024;

/// The lines of `start..end`, in file order.
#[derive(Debug)]
pub(crate) struct ForwardLines {
    at: u64,
    end: u64,
    chunk: usize,
    carry: Vec<u8>,
}

impl ForwardLines {
    pub(crate) fn new(start: u64, end: u64) -> Self {
        Self {
            at: start,
            end,
            chunk: INITIAL_CHUNK_BYTES,
            carry: Vec::new(),
        }
    }

    /// For scanning everything: no small reads first.
    pub(crate) fn large(start: u64, end: u64) -> Self {
        Self {
            chunk: MAX_CHUNK_BYTES,
            ..Self::new(start, end)
        }
    }

    /// Reads on and calls `each` with the position and bytes of every line completed by that; `false` at the end. The
    /// last line needs no newline.
    pub(crate) fn advance(
        &mut self,
        file: &dyn FsFile,
        mut each: impl FnMut(u64, &[u8]),
    ) -> io::Result<bool> {
        let wanted = usize::try_from(self.end.saturating_sub(self.at))
            .unwrap_or(usize::MAX)
            .min(self.chunk);
        self.chunk = (self.chunk * 4).min(MAX_CHUNK_BYTES);
        let mut line_start = self.at - self.carry.len() as u64;
        let old = self.carry.len();
        self.carry.resize(old + wanted, 0);
        let filled = match self.carry.get_mut(old..) {
            Some(fresh) => file.read_full_at(fresh, self.at)?,
            None => 0,
        };
        self.carry.truncate(old + filled);
        self.at += filled as u64;
        let finished = filled < wanted || self.at >= self.end;
        let mut rest = self.carry.as_slice();
        // What was carried over is known to hold no newline.
        let mut searched = old;
        while let Some(length) = rest
            .get(searched..)
            .and_then(|fresh| memchr::memchr(b'\n', fresh))
        {
            let Some((line, after)) = rest.split_at_checked(searched + length + 1) else {
                break;
            };
            each(line_start, line);
            line_start += line.len() as u64;
            rest = after;
            searched = 0;
        }
        if finished && !rest.is_empty() {
            each(line_start, rest);
            rest = &[];
        }
        let kept = rest.len();
        let drop = self.carry.len() - kept;
        self.carry.drain(..drop);
        Ok(!finished)
    }
}

/// The lines of `start..end`, latest first.
#[derive(Debug)]
pub(crate) struct BackwardLines {
    start: u64,
    at: u64,
    chunk: usize,
    carry: Vec<u8>,
}

impl BackwardLines {
    pub(crate) fn new(start: u64, end: u64) -> Self {
        Self {
            start,
            at: end,
            chunk: INITIAL_CHUNK_BYTES,
            carry: Vec::new(),
        }
    }

    /// Like [`ForwardLines::advance`], towards the beginning.
    pub(crate) fn advance(
        &mut self,
        file: &dyn FsFile,
        mut each: impl FnMut(u64, &[u8]),
    ) -> io::Result<bool> {
        let wanted = usize::try_from(self.at.saturating_sub(self.start))
            .unwrap_or(usize::MAX)
            .min(self.chunk);
        self.chunk = (self.chunk * 4).min(MAX_CHUNK_BYTES);
        self.at -= wanted as u64;
        let mut block = file.read_range(self.at, wanted)?;
        if block.len() < wanted {
            return Ok(false);
        }
        block.append(&mut self.carry);
        let finished = self.at <= self.start;
        let mut rest = block.as_slice();
        loop {
            // The newline that ends the last line does not begin another one.
            let body = rest.strip_suffix(b"\n").unwrap_or(rest);
            let Some(newline) = memchr::memrchr(b'\n', body) else {
                break;
            };
            let Some((before, line)) = rest.split_at_checked(newline + 1) else {
                break;
            };
            each(self.at + before.len() as u64, line);
            rest = before;
        }
        if finished {
            if !rest.is_empty() {
                each(self.at, rest);
            }
        } else {
            self.carry = rest.to_vec();
        }
        Ok(!finished)
    }
}

/// Where the line that contains the byte before `end` begins.
pub(crate) fn start_of_last_line(file: &dyn FsFile, end: u64) -> io::Result<u64> {
    let mut at = end;
    while at > 0 {
        let length = at.min(INITIAL_CHUNK_BYTES as u64);
        at -= length;
        let block = file.read_range(at, usize::try_from(length).unwrap_or(INITIAL_CHUNK_BYTES))?;
        // The byte right before `end` may be the newline of that very line.
        let searched = if at + length == end {
            block.split_last().map_or(&[][..], |(_, head)| head)
        } else {
            &block
        };
        if let Some(newline) = memchr::memrchr(b'\n', searched) {
            return Ok(at + newline as u64 + 1);
        }
    }
    Ok(0)
}
