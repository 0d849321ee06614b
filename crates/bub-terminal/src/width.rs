//! Display width of text in terminal columns.

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// Returns the display width of a text on one line, in columns. A grapheme cluster, such as an emoji of several
/// characters or a letter with combining marks, counts as one character.
///
/// ```
/// assert_eq!(bub_terminal::columns("ab你"), 4);
/// ```
pub fn columns(text: &str) -> usize {
    if text.is_ascii() {
        return text.len();
    }
    text.graphemes(true).map(UnicodeWidthStr::width).sum()
}

/// Splits a text into the part that fits into `width` columns and the rest. Grapheme clusters are not split.
///
/// ```
/// assert_eq!(bub_terminal::split_at_width("ab你好", 5), ("ab你", "好"));
/// ```
pub fn split_at_width(text: &str, width: usize) -> (&str, &str) {
    // Fast path: if the first `width` + 1 bytes are ASCII, a grapheme cluster ends at the offset `width`.
    let start = text.as_bytes().get(..=width).unwrap_or(text.as_bytes());
    if start.is_ascii() {
        return text.split_at(width.min(text.len()));
    }
    let mut used = 0;
    for (offset, cluster) in text.grapheme_indices(true) {
        used += cluster.width();
        if used > width {
            return text.split_at(offset);
        }
    }
    (text, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_measured_whole() {
        let measured = ["abc", "你好", "e\u{301}", "👨‍👩‍👧", "👍🏽", "🇩🇪", ""].map(columns);
        assert_eq!(measured, [3, 4, 1, 2, 2, 2, 0]);
        assert_eq!(split_at_width("a你好", 3), ("a你", "好"));
        assert_eq!(split_at_width("a你好", 2), ("a", "你好"));
        assert_eq!(split_at_width("abc", 3), ("abc", ""));
    }
}
