//! Decodes the bytes that a terminal sends into keys.

/// A key press, or pasted text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyEvent {
    /// A character.
    Char(char),
    /// A letter with Ctrl, in lower case.
    Ctrl(char),
    /// A character with Alt.
    Alt(char),
    /// Enter.
    Enter,
    /// Enter with Alt, Shift or Ctrl, which inserts a line break.
    NewLine,
    /// Tab.
    Tab,
    /// Tab with Shift.
    BackTab,
    /// Backspace.
    Backspace,
    /// Backspace with Alt.
    AltBackspace,
    /// Delete.
    Delete,
    /// Delete with Alt or Ctrl, or Alt-D.
    DeleteWord,
    /// Left arrow.
    Left,
    /// Right arrow.
    Right,
    /// Left arrow with Alt or Ctrl, or Alt-B.
    WordLeft,
    /// Right arrow with Alt or Ctrl, or Alt-F.
    WordRight,
    /// Up arrow.
    Up,
    /// Down arrow.
    Down,
    /// Home.
    Home,
    /// End.
    End,
    /// Escape.
    Escape,
    /// Pasted text, with all line endings as `\n`.
    Paste(String),
}

/// The sequence that ends a paste.
const PASTE_END: &[u8] = b"\x1b[201~";
/// Maximum size of one paste. The rest of a longer paste is read as keys.
const MAX_PASTE_BYTES: usize = 4 * 1024 * 1024;
/// Maximum length of a key sequence; longer ones are discarded.
const MAX_SEQUENCE_BYTES: usize = 64;

/// Decodes bytes into keys. Invalid UTF-8 becomes U+FFFD.
#[derive(Debug, Default)]
pub struct KeyDecoder {
    pending: Vec<u8>,
    is_pasting: bool,
}

/// The result of parsing the start of the pending bytes.
enum ParsedKey {
    /// The length in bytes and the key. The key is `None` if the sequence is ignored.
    Key(usize, Option<KeyEvent>),
    /// The length of the sequence that starts a paste.
    PasteStart(usize),
    /// More bytes are needed.
    More,
}

impl KeyDecoder {
    /// Adds bytes and returns the keys that are complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<KeyEvent> {
        self.pending.extend_from_slice(bytes);
        let mut keys = Vec::new();
        loop {
            if self.is_pasting {
                let Some(paste) = self.take_paste() else {
                    return keys;
                };
                keys.push(paste);
            }
            match parse_key(&self.pending) {
                ParsedKey::Key(length, key) => {
                    self.pending.drain(..length.min(self.pending.len()));
                    keys.extend(key);
                }
                ParsedKey::PasteStart(length) => {
                    self.pending.drain(..length);
                    self.is_pasting = true;
                }
                ParsedKey::More => return keys,
            }
        }
    }

    /// Returns whether the start of a key sequence is pending. If nothing follows in time, call [`Self::flush`].
    pub fn has_pending(&self) -> bool {
        !self.is_pasting && !self.pending.is_empty()
    }

    /// Returns the pending bytes as keys. The chat calls it if no more bytes arrive in time.
    pub fn flush(&mut self) -> Vec<KeyEvent> {
        if !self.has_pending() {
            return Vec::new();
        }
        let pending = std::mem::take(&mut self.pending);
        let Some((0x1b, rest)) = pending.split_first() else {
            return vec![KeyEvent::Char(char::REPLACEMENT_CHARACTER)];
        };
        let mut keys = vec![KeyEvent::Escape];
        keys.extend(String::from_utf8_lossy(rest).chars().map(KeyEvent::Char));
        keys
    }

    /// Returns the pasted text if it is complete or has reached `MAX_PASTE_BYTES`, otherwise `None`.
    fn take_paste(&mut self) -> Option<KeyEvent> {
        let mut windows = self.pending.windows(PASTE_END.len());
        let end = windows.position(|window| window == PASTE_END);
        if end.is_none() && self.pending.len() < MAX_PASTE_BYTES {
            return None;
        }
        let end = end.unwrap_or(self.pending.len());
        let text: Vec<u8> = self.pending.drain(..end).collect();
        let end_length = PASTE_END.len().min(self.pending.len());
        self.pending.drain(..end_length);
        self.is_pasting = false;
        let text = String::from_utf8_lossy(&text).replace("\r\n", "\n");
        Some(KeyEvent::Paste(text.replace('\r', "\n")))
    }
}

/// Parses the first key of the bytes.
fn parse_key(bytes: &[u8]) -> ParsedKey {
    let one_byte = |key: KeyEvent| ParsedKey::Key(1, Some(key));
    match bytes {
        [] | [0x1b] | [0x1b, b'O'] => ParsedKey::More,
        [0x1b, b'[', rest @ ..] => parse_control_sequence(rest),
        [0x1b, b'O', letter, ..] => ParsedKey::Key(3, key_from_letter(*letter, false)),
        [0x1b, 0x1b, ..] => one_byte(KeyEvent::Escape),
        [0x1b, rest @ ..] => match parse_key(rest) {
            ParsedKey::Key(length, key) => ParsedKey::Key(length + 1, key.map(with_alt)),
            other => other,
        },
        [b'\r', ..] => one_byte(KeyEvent::Enter),
        [b'\t', ..] => one_byte(KeyEvent::Tab),
        [0x7f | 0x08, ..] => one_byte(KeyEvent::Backspace),
        [control @ 1..=26, ..] => one_byte(KeyEvent::Ctrl(char::from(control + b'a' - 1))),
        [0..=0x1f, ..] => ParsedKey::Key(1, None),
        [ascii @ ..=0x7e, ..] => one_byte(KeyEvent::Char(char::from(*ascii))),
        _ => parse_char(bytes),
    }
}

/// Parses the first character of the bytes as UTF-8.
fn parse_char(bytes: &[u8]) -> ParsedKey {
    let start = bytes.get(..bytes.len().min(4)).unwrap_or_default();
    let Some(chunk) = start.utf8_chunks().next() else {
        return ParsedKey::More;
    };
    let key = |length, character| ParsedKey::Key(length, Some(KeyEvent::Char(character)));
    let is_incomplete = || str::from_utf8(start).is_err_and(|error| error.error_len().is_none());
    match chunk.valid().chars().next() {
        Some(character) => key(character.len_utf8(), character),
        None if is_incomplete() => ParsedKey::More,
        None => key(chunk.invalid().len(), char::REPLACEMENT_CHARACTER),
    }
}

/// Parses the bytes after `ESC [`.
fn parse_control_sequence(rest: &[u8]) -> ParsedKey {
    let Some(end) = rest.iter().position(|byte| (0x40..=0x7e).contains(byte)) else {
        // Discard an unterminated sequence, so that it cannot grow without limit.
        return if rest.len() > MAX_SEQUENCE_BYTES {
            ParsedKey::Key(rest.len() + 2, None)
        } else {
            ParsedKey::More
        };
    };
    let (parameters, last) = (
        rest.get(..end).unwrap_or_default(),
        rest.get(end).copied().unwrap_or(b'~'),
    );
    let numbers: Vec<u32> = String::from_utf8_lossy(parameters)
        .split([';', ':'])
        .map(|number| number.parse().unwrap_or(0))
        .collect();
    let number = |index: usize| numbers.get(index).copied().unwrap_or(0);
    // The second number is the modifier: 2 for Shift, 3 for Alt, 5 for Ctrl. Combinations have other numbers above 3.
    let is_modified = number(1) > 2;
    let length = end + 3;
    let key = match (last, number(0)) {
        (b'~', 200) => return ParsedKey::PasteStart(length),
        (b'~', 1 | 7) => Some(KeyEvent::Home),
        (b'~', 4 | 8) => Some(KeyEvent::End),
        (b'~', 3) if is_modified => Some(KeyEvent::DeleteWord),
        (b'~', 3) => Some(KeyEvent::Delete),
        // Terminals report Enter with a modifier in one of two formats.
        (b'~', 27) if number(2) == 13 => Some(KeyEvent::NewLine),
        (b'u', 13) if number(1) > 1 => Some(KeyEvent::NewLine),
        (b'u', 13) => Some(KeyEvent::Enter),
        (b'u', 27) => Some(KeyEvent::Escape),
        (b'Z', _) => Some(KeyEvent::BackTab),
        (letter, _) => key_from_letter(letter, is_modified),
    };
    ParsedKey::Key(length, key)
}

/// Returns the key that the final letter of a sequence stands for.
fn key_from_letter(letter: u8, is_modified: bool) -> Option<KeyEvent> {
    Some(match letter {
        b'A' => KeyEvent::Up,
        b'B' => KeyEvent::Down,
        b'C' if is_modified => KeyEvent::WordRight,
        b'C' => KeyEvent::Right,
        b'D' if is_modified => KeyEvent::WordLeft,
        b'D' => KeyEvent::Left,
        b'H' => KeyEvent::Home,
        b'F' => KeyEvent::End,
        b'M' => KeyEvent::Enter,
        _ => return None,
    })
}

/// Returns the key event for `key` pressed together with Alt.
fn with_alt(key: KeyEvent) -> KeyEvent {
    match key {
        KeyEvent::Enter | KeyEvent::Ctrl('j') => KeyEvent::NewLine,
        KeyEvent::Backspace => KeyEvent::AltBackspace,
        KeyEvent::Left | KeyEvent::Char('b' | 'B') => KeyEvent::WordLeft,
        KeyEvent::Right | KeyEvent::Char('f' | 'F') => KeyEvent::WordRight,
        KeyEvent::Delete | KeyEvent::Char('d' | 'D') => KeyEvent::DeleteWord,
        KeyEvent::Char(character) => KeyEvent::Alt(character),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_usual_terminals_are_known() {
        let rows: &[(&[u8], KeyEvent)] = &[
            (b"a", KeyEvent::Char('a')),
            ("é".as_bytes(), KeyEvent::Char('é')),
            ("🐙".as_bytes(), KeyEvent::Char('🐙')),
            (b"\r", KeyEvent::Enter),
            (b"\n", KeyEvent::Ctrl('j')),
            (b"\x1b\r", KeyEvent::NewLine),
            (b"\x1b[13;2u", KeyEvent::NewLine),
            (b"\x1b[27;2;13~", KeyEvent::NewLine),
            (b"\x01", KeyEvent::Ctrl('a')),
            (b"\x7f", KeyEvent::Backspace),
            (b"\x1b\x7f", KeyEvent::AltBackspace),
            (b"\x1b[A", KeyEvent::Up),
            (b"\x1bOA", KeyEvent::Up),
            (b"\x1b[1;5C", KeyEvent::WordRight),
            (b"\x1b[1;2C", KeyEvent::Right),
            (b"\x1bb", KeyEvent::WordLeft),
            (b"\x1bd", KeyEvent::DeleteWord),
            (b"\x1b[3~", KeyEvent::Delete),
            (b"\x1b[H", KeyEvent::Home),
            (b"\x1b[4~", KeyEvent::End),
            (b"\x1b[Z", KeyEvent::BackTab),
        ];
        for (bytes, key) in rows {
            assert_eq!(
                KeyDecoder::default().feed(bytes),
                std::slice::from_ref(key),
                "{bytes:?}"
            );
            // The result is the same if the bytes arrive one at a time.
            let mut decoder = KeyDecoder::default();
            let split: Vec<KeyEvent> = bytes
                .iter()
                .flat_map(|byte| decoder.feed(&[*byte]))
                .collect();
            assert_eq!(split, std::slice::from_ref(key), "{bytes:?} byte by byte");
        }
    }

    #[test]
    fn a_paste_is_one_key_and_its_line_ends_stay() {
        let mut decoder = KeyDecoder::default();
        assert_eq!(decoder.feed(b"\x1b[200~one\r\ntw"), []);
        assert!(!decoder.has_pending());
        assert_eq!(
            decoder.feed(b"o\rthree\x1b[A\x1b[201~x"),
            [
                KeyEvent::Paste("one\ntwo\nthree\x1b[A".to_owned()),
                KeyEvent::Char('x')
            ]
        );
    }

    #[test]
    fn escape_alone_is_a_key_once_nothing_follows() {
        let mut decoder = KeyDecoder::default();
        assert_eq!(decoder.feed(b"\x1b"), []);
        assert!(decoder.has_pending());
        assert_eq!(decoder.flush(), [KeyEvent::Escape]);
        assert!(!decoder.has_pending());
    }

    #[test]
    fn invalid_bytes_are_ignored_or_replaced() {
        let mut decoder = KeyDecoder::default();
        assert_eq!(
            decoder.feed(b"\xff\xfea"),
            [
                KeyEvent::Char('\u{fffd}'),
                KeyEvent::Char('\u{fffd}'),
                KeyEvent::Char('a')
            ]
        );
        assert_eq!(
            decoder.feed(b"\x1b[99;99;99Xb\x1b[12~"),
            [KeyEvent::Char('b')]
        );
        assert_eq!(
            decoder.feed(&[b"\x1b[".as_slice(), &[b'1'; 100]].concat()),
            []
        );
        assert_eq!(decoder.feed(b"c"), [KeyEvent::Char('c')]);
    }
}
