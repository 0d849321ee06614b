//! Any bytes are read as an Office document, and as a part of one, in bounded space and without a panic.

use bub_agent::{office_part_text, office_text};

/// Maximum characters of the text.
const MAX_CHARS: usize = 100;

pub(crate) fn check(input: &[u8]) {
    let is_limited = |text: &str| assert!(text.len() <= 4 * MAX_CHARS, "{} bytes", text.len());
    if let Ok(text) = office_text(input, MAX_CHARS) {
        is_limited(&text);
    }
    let parts = office_part_text(&String::from_utf8_lossy(input), MAX_CHARS);
    parts.iter().flatten().for_each(|text| is_limited(text));
}
