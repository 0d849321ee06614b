//! Ruling out lines before they are decoded.

use std::{fmt, ops::Range};

/// Says which lines of a tape can be worth decoding.
///
/// Decoding an entry costs a hundred times more than looking for a few bytes in its line. A store that holds
/// lines shows them to the sieve first and decodes what it keeps; a store that does not may ignore it. A sieve
/// may keep too much, never too little, so the answer of a query does not depend on who asked it.
pub trait LineFilter: Send + Sync + fmt::Debug {
    /// Appends the ranges of the lines worth decoding, in order, each with its newline. `lines` are whole lines as
    /// [`codec`](crate::codec) writes and reads them; the last one may lack its newline.
    fn filter(&self, lines: &[u8], keep: &mut Vec<Range<usize>>);
}
