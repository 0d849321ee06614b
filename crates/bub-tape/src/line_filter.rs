//! Filters lines before they are decoded.

use std::{fmt, ops::Range};

/// Selects the lines of a tape that must be decoded to answer a request.
///
/// Decoding an entry costs a hundred times more than searching its line for a few bytes. A store that holds lines
/// decodes only the lines that the filter selects. Other stores may ignore the filter. A filter may select lines that
/// do not match, but it must select all lines that do. Therefore the results do not depend on the store.
pub trait LineFilter: Send + Sync + fmt::Debug {
    /// Appends the ranges of the selected lines to `keep` in order, each with its newline.
    ///
    /// `lines` contains complete lines in the format of [`codec`](crate::codec). The last line may lack its newline.
    fn filter(&self, lines: &[u8], keep: &mut Vec<Range<usize>>);
}
