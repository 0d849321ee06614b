//! Any text gives messages within the limit that a strict parser of the platform's HTML accepts and
//! whose text is the plain text.

use bub_telegram::html::{MAX_MESSAGE_UNITS, render};

#[path = "../../plugins/telegram/tests/it/text/checker.rs"]
#[allow(dead_code, reason = "its own test")]
mod checker;

pub(crate) fn check(input: &[u8]) {
    // Replace each `\u{1}` by a long word and each `\u{2}` by many lines, so that short inputs are
    // split as well.
    let text = String::from_utf8_lossy(input);
    let text = text
        .replace('\u{1}', &"x".repeat(3000))
        .replace('\u{2}', &"line\n".repeat(700));
    for part in render(&text) {
        assert_eq!(checker::text_of(&part.html).as_ref(), Ok(&part.plain));
        assert!(part.html.encode_utf16().count() <= MAX_MESSAGE_UNITS);
        assert!(!part.plain.trim().is_empty());
    }
}
