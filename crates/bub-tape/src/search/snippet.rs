//! Extracts the text around a match as one line.

use crate::query::{fold::fold_text, text::FoldedNeedle};

/// Maximum number of characters before the match.
const SNIPPET_LEAD_CHARS: usize = 60;
/// Maximum length of a snippet in characters, without ellipses.
const SNIPPET_CHARS: usize = 200;

/// Returns the text around the first match of a needle, or `None` if it does not occur.
pub(super) fn snippet_around(text: &str, needle: &FoldedNeedle) -> Option<String> {
    let folded = fold_text(text);
    let offset = memchr::memmem::find(folded.as_bytes(), needle.folded().as_bytes())?;
    Some(extract_snippet(text, &folded, offset))
}

/// Returns the text around a byte offset of `folded`. Folding keeps the number of characters, so the character index is
/// the same in `text`.
pub(super) fn extract_snippet(text: &str, folded: &str, offset: usize) -> String {
    let char_index = folded
        .char_indices()
        .take_while(|(index, _)| *index < offset)
        .count();
    let start = char_index.saturating_sub(SNIPPET_LEAD_CHARS);
    let mut rest = text.chars().skip(start);
    let part: String = rest.by_ref().take(SNIPPET_CHARS).collect();
    let words: Vec<&str> = part.split_whitespace().collect();
    let (before, after) = (
        if start > 0 { "…" } else { "" },
        if rest.next().is_some() { "…" } else { "" },
    );
    format!("{before}{}{after}", words.join(" "))
}
