//! The text around a match, on one line.

use crate::query::{fold::fold_text, text::FoldedNeedle};

const SNIPPET_LEAD_CHARS: usize = 60;
const SNIPPET_CHARS: usize = 200;

/// The text around what is wanted; `None` when it is not there.
pub(super) fn snippet_around(text: &str, wanted: &FoldedNeedle) -> Option<String> {
    let folded = fold_text(text);
    let at = memchr::memmem::find(folded.as_bytes(), wanted.folded().as_bytes())?;
    Some(cut(text, &folded, at))
}

/// The text around a byte of its folded form.
pub(super) fn snippet(text: &str, at: usize) -> String {
    cut(text, &fold_text(text), at)
}

/// Folding keeps the count of characters, so that a place in folded text is found again in the text itself.
fn cut(text: &str, folded: &str, at: usize) -> String {
    let place = folded
        .char_indices()
        .take_while(|(index, _)| *index < at)
        .count();
    let start = place.saturating_sub(SNIPPET_LEAD_CHARS);
    let mut rest = text.chars().skip(start);
    let part: String = rest.by_ref().take(SNIPPET_CHARS).collect();
    let words: Vec<&str> = part.split_whitespace().collect();
    let (before, after) = (
        if start > 0 { "…" } else { "" },
        if rest.next().is_some() { "…" } else { "" },
    );
    format!("{before}{}{after}", words.join(" "))
}
