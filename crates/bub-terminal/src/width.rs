//! How many columns of a terminal a text takes.

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// The columns of a text on one line. Clusters (an emoji of several characters, a letter with its marks) count
/// as what they look like.
pub fn columns(text: &str) -> usize {
    if text.is_ascii() {
        return text.len();
    }
    text.graphemes(true).map(UnicodeWidthStr::width).sum()
}

/// The beginning of a text that fits into so many columns, and the rest; clusters are not torn.
pub fn fit(text: &str, width: usize) -> (&str, &str) {
    // The usual case, without a look at clusters: they end between two characters of ASCII.
    let begin = text.as_bytes().get(..=width).unwrap_or(text.as_bytes());
    if begin.is_ascii() {
        return text.split_at(width.min(text.len()));
    }
    let mut used = 0;
    for (start, cluster) in text.grapheme_indices(true) {
        used += cluster.width();
        if used > width {
            return text.split_at(start);
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
        assert_eq!(fit("a你好", 3), ("a你", "好"));
        assert_eq!(fit("a你好", 2), ("a", "你好"));
        assert_eq!(fit("abc", 3), ("abc", ""));
    }
}
