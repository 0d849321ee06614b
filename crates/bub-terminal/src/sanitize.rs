//! Makes text from models, tools, commands and tapes safe for a terminal. The sanitized text cannot move the cursor,
//! change the reading order, or hide anything.

use std::{borrow::Cow, fmt::Write as _};

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// Replaces control characters and invisible characters with visible ones. Line feeds and tabs are kept; `\r\n`
/// becomes `\n`.
///
/// ```
/// use bub_terminal::sanitize::sanitize;
///
/// assert_eq!(sanitize("\x1b[2Jhello"), "␛[2Jhello");
/// ```
pub fn sanitize(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~' | b'\n' | b'\t');
    let is_kept = |character| !is_suspect(character) || matches!(character, '\n' | '\t');
    if text.bytes().all(is_plain) || text.chars().all(is_kept) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 16);
    let mut rest = text.chars().peekable();
    let mut previous = ' ';
    while let Some(character) = rest.next() {
        match character {
            '\r' if rest.peek() == Some(&'\n') => {}
            '\n' | '\t' => clean.push(character),
            _ if is_unsafe_char(character) || is_stray_joiner(character, previous) => {
                push_visible_form(&mut clean, character);
            }
            _ => clean.push(character),
        }
        previous = character;
    }
    Cow::Owned(clean)
}

/// Sanitizes a text and joins its words with single spaces, so that the result is one line.
pub fn sanitize_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    sanitize(&words.join(" ")).into_owned()
}

/// Expands tabs to spaces up to the next tab stop. The text must have no line endings and start in the first column.
pub fn expand_tabs(text: &str, tab_width: usize) -> Cow<'_, str> {
    if !text.contains('\t') {
        return Cow::Borrowed(text);
    }
    let mut expanded = String::with_capacity(text.len() + 16);
    let mut column = 0;
    for cluster in text.graphemes(true) {
        if cluster == "\t" {
            let spaces = tab_width - column % tab_width;
            expanded.extend(std::iter::repeat_n(' ', spaces));
            column += spaces;
        } else {
            expanded.push_str(cluster);
            column += cluster.width();
        }
    }
    Cow::Owned(expanded)
}

/// Returns whether a character is a control character, changes the reading order, or is invisible.
pub fn is_unsafe_char(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            | '\u{2028}' | '\u{2029}'
            | '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{200b}' | '\u{2060}'..='\u{2064}'
            | '\u{206a}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}')
}

/// Returns whether `sanitize` may have to replace a character.
fn is_suspect(character: char) -> bool {
    is_unsafe_char(character) || is_joiner(character) || is_tag(character)
}

fn is_joiner(character: char) -> bool {
    matches!(character, '\u{200c}' | '\u{200d}')
}

fn is_tag(character: char) -> bool {
    matches!(character, '\u{e0000}'..='\u{e007f}')
}

/// Returns whether a zero-width joiner or a tag character is misplaced. Joiners belong between letters or emoji, and
/// tag characters into flag emoji. In other contexts, they can only hide text.
fn is_stray_joiner(character: char, previous: char) -> bool {
    (is_joiner(character) && (previous.is_ascii() || is_joiner(previous)))
        || (is_tag(character) && previous != '\u{1f3f4}' && !is_tag(previous))
}

/// Appends a visible form of a character: a control picture such as `␛`, or a code such as `\u{200b}`.
fn push_visible_form(clean: &mut String, character: char) {
    match u32::from(character) {
        // Unicode has a picture for each ASCII control character.
        code @ 0..=0x1f => clean.extend(char::from_u32(0x2400 + code)),
        0x7f => clean.push('\u{2421}'),
        code => {
            let _ = write!(clean, "\\u{{{code:x}}}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_become_visible() {
        assert_eq!(
            sanitize("a\x1b[31mb\u{9b}2Jc\x07\x7f"),
            "a␛[31mb\\u{9b}2Jc␇␡"
        );
        assert_eq!(
            sanitize("\x1b]0;title\x07\x1b]8;;http://evil\x1b\\x"),
            "␛]0;title␇␛]8;;http://evil␛\\x"
        );
        assert_eq!(sanitize("one\r\ntwo\rthree\tfour"), "one\ntwo␍three\tfour");
        assert!(matches!(sanitize("plain\n你好 🐙"), Cow::Borrowed(_)));
        assert_eq!(sanitize_line(" a\n\tb\x1b "), "a b␛");
    }

    #[test]
    fn nothing_is_hidden_or_turned_around() {
        for harmful in [
            "\u{202e}", "\u{2066}", "\u{200b}", "\u{feff}", "\u{2060}", "\u{ad}", "\u{2028}",
            "\u{3164}",
        ] {
            let sanitized = sanitize(harmful).into_owned();
            assert_eq!(
                sanitized,
                format!("\\u{{{:x}}}", u32::from(harmful.chars().next().unwrap()))
            );
        }
        assert_eq!(sanitize("pay\u{200d}pal"), "pay\\u{200d}pal");
        assert_eq!(sanitize("x\u{e0041}"), "x\\u{e0041}");
    }

    #[test]
    fn joined_letters_and_emoji_stay() {
        for text in [
            "👨‍👩‍👧",
            "می‌خواهم",
            "🏴\u{e0067}\u{e0062}\u{e0065}\u{e006e}\u{e0067}\u{e007f}",
            "❤️",
            "שלום",
            "क्‍ष",
        ] {
            assert_eq!(sanitize(text), text);
        }
    }

    #[test]
    fn tabs_reach_the_next_stop() {
        assert_eq!(expand_tabs("\ta\t你\tx", 4), "    a   你  x");
        assert!(matches!(expand_tabs("ab", 4), Cow::Borrowed(_)));
    }
}
