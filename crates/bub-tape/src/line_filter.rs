//! Filters lines before they are decoded.

use std::{fmt, ops::Range};

/// Selects the lines of a tape that a read must decode.
///
/// Decoding an entry costs a hundred times more than searching its line for a few bytes. A store that keeps entries as
/// lines of JSON decodes only the lines that the filter selects. Other stores may ignore the filter. A filter may
/// select too many lines, but it must select every line that the read needs. Callers check the decoded entries again,
/// so the results do not depend on the store.
pub trait LineFilter: Send + Sync + fmt::Debug {
    /// Appends the ranges of the selected lines to `keep` in order, each with its newline.
    ///
    /// `lines` contains complete lines in the format of [`codec`](crate::codec). The last line may lack its newline.
    fn filter(&self, lines: &[u8], keep: &mut Vec<Range<usize>>);
}
