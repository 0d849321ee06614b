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
    Sanitizer::default().sanitize(text)
}

/// Sanitizes a text that arrives in parts, like [`sanitize`]. A part can end within an emoji.
#[derive(Clone, Copy, Debug)]
pub struct Sanitizer {
    /// The last character that was kept, or a space.
    previous: char,
    /// Number of tag characters at the end of the text so far.
    tags: usize,
}

impl Default for Sanitizer {
    fn default() -> Self {
        Self {
            previous: ' ',
            tags: 0,
        }
    }
}

impl Sanitizer {
    /// Sanitizes the next part of the text.
    pub fn sanitize<'a>(&mut self, text: &'a str) -> Cow<'a, str> {
        let is_plain = |byte: u8| matches!(byte, b' '..=b'~' | b'\n' | b'\t');
        let is_kept = |character| !is_suspect(character) || matches!(character, '\n' | '\t');
        if text.bytes().all(is_plain) || text.chars().all(is_kept) {
            if let Some(last) = text.chars().next_back() {
                (self.previous, self.tags) = (last, 0);
            }
            return Cow::Borrowed(text);
        }
        let mut clean = String::with_capacity(text.len() + 16);
        let mut rest = text.chars().peekable();
        while let Some(character) = rest.next() {
            let is_replaced = match character {
                '\r' if rest.peek() == Some(&'\n') => continue,
                '\n' | '\t' => false,
                _ => is_unsafe_char(character) || self.is_stray(character),
            };
            if is_replaced {
                push_visible_form(&mut clean, character);
            } else {
                clean.push(character);
            }
            self.tags = if is_tag(character) { self.tags + 1 } else { 0 };
            self.previous = if is_replaced { ' ' } else { character };
        }
        Cow::Owned(clean)
    }

    /// Returns whether an invisible character is misplaced after the text so far. It can then only hide text: each has its
    /// place after certain characters, and none in a row.
    fn is_stray(&self, character: char) -> bool {
        let previous = self.previous;
        match character {
            // Between letters or emoji.
            _ if is_joiner(character) => previous.is_ascii() || is_joiner(previous),
            // In flag emoji: up to six letters and an end.
            _ if is_tag(character) => {
                (previous != '\u{1f3f4}' && !is_tag(previous)) || self.tags >= MAX_FLAG_TAGS
            }
            // After an emoji, a keycap or a letter with variants.
            '\u{fe00}'..='\u{fe0f}' => {
                let is_keycap = matches!(previous, '0'..='9' | '#' | '*');
                (previous.is_ascii() && !is_keycap) || is_variation_selector(previous)
            }
            // After a Chinese character.
            _ if is_variation_selector(character) => {
                !matches!(previous, '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
            }
            // A blank in Braille text.
            BRAILLE_BLANK => !matches!(previous, '\u{2800}'..='\u{28ff}'),
            _ => false,
        }
    }
}

/// Maximum number of tag characters in a flag emoji.
const MAX_FLAG_TAGS: usize = 7;
const BRAILLE_BLANK: char = '\u{2800}';

/// Sanitizes a text and joins its words with single spaces, so that the result is one line.
pub fn sanitize_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    sanitize(&words.join(" ")).into_owned()
}

/// Expands tabs to spaces up to the next tab stop. The text starts in `column` and must have no line endings.
pub fn expand_tabs(text: &str, mut column: usize, tab_width: usize) -> Cow<'_, str> {
    if !text.contains('\t') {
        return Cow::Borrowed(text);
    }
    let mut expanded = String::with_capacity(text.len() + 16);
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
    is_unsafe_char(character)
        || is_joiner(character)
        || is_tag(character)
        || is_variation_selector(character)
        || character == BRAILLE_BLANK
}

fn is_joiner(character: char) -> bool {
    matches!(character, '\u{200c}' | '\u{200d}')
}

fn is_tag(character: char) -> bool {
    matches!(character, '\u{e0000}'..='\u{e007f}')
}

fn is_variation_selector(character: char) -> bool {
    matches!(character, '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}')
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

    // Text that is hidden in a row of invisible characters.
    #[test]
    fn rows_of_invisible_characters_become_visible() {
        assert_eq!(sanitize("x\u{e0041}\u{e0042}"), "x\\u{e0041}\\u{e0042}");
        assert_eq!(
            sanitize("😀\u{fe0f}\u{fe0f}\u{fe01}"),
            "😀\u{fe0f}\\u{fe0f}\\u{fe01}"
        );
        assert_eq!(
            sanitize("😀\u{e0148}\u{e0155}a\u{fe0f}\u{fe00}"),
            "😀\\u{e0148}\\u{e0155}a\\u{fe0f}\\u{fe00}"
        );
        assert_eq!(sanitize("字\u{e0100}\u{e0101}"), "字\u{e0100}\\u{e0101}");
        assert_eq!(sanitize("rm\u{2800}\u{2800}-rf"), "rm\\u{2800}\\u{2800}-rf");
        let hidden: String = "🏴"
            .chars()
            .chain(('\u{e0061}'..='\u{e007a}').take(20))
            .collect();
        assert_eq!(sanitize(&hidden).matches("\\u{e00").count(), 13);
    }

    // Models split an emoji over deltas.
    #[test]
    fn parts_are_sanitized_like_the_whole() {
        let text =
            "❤\u{fe0f}\u{200d}🔥 1\u{fe0f}\u{20e3} a\u{fe0f}\u{fe0f} x\u{e0041}\u{e0042} ⠓⠀⠓";
        let mut sanitizer = Sanitizer::default();
        let parts = text
            .chars()
            .map(|part| sanitizer.sanitize(&part.to_string()).into_owned());
        assert_eq!(parts.collect::<String>(), sanitize(text));
    }

    #[test]
    fn joined_letters_and_emoji_stay() {
        for text in [
            "👨‍👩‍👧",
            "می‌خواهم",
            "🏴\u{e0067}\u{e0062}\u{e0065}\u{e006e}\u{e0067}\u{e007f}",
            "❤️",
            "❤️‍🔥 1️⃣ #️⃣ ☎︎",
            "葛\u{e0100}飾",
            "⠓⠑⠇⠇⠕⠀⠺⠕⠗⠇⠙",
            "שלום",
            "क्‍ष",
        ] {
            assert_eq!(sanitize(text), text);
        }
    }

    #[test]
    fn tabs_reach_the_next_stop() {
        assert_eq!(expand_tabs("\ta\t你\tx", 0, 4), "    a   你  x");
        assert_eq!(expand_tabs("a\tb", 2, 4), "a b");
        assert!(matches!(expand_tabs("ab", 0, 4), Cow::Borrowed(_)));
    }
}
