//! What somebody types, from the bytes a terminal sends.

/// A key, or what was pasted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// A letter with Ctrl, in lower case.
    Ctrl(char),
    /// A character with Alt.
    Alt(char),
    /// Enter.
    Enter,
    /// Enter with Alt or Shift: a new line in the text.
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
    /// Delete with Alt or Ctrl.
    DeleteWord,
    /// An arrow.
    Left,
    /// An arrow.
    Right,
    /// An arrow with Alt or Ctrl.
    WordLeft,
    /// An arrow with Alt or Ctrl.
    WordRight,
    /// An arrow.
    Up,
    /// An arrow.
    Down,
    /// Home.
    Home,
    /// End.
    End,
    /// Escape.
    Escape,
    /// Pasted text, with line ends as `\n`.
    Paste(String),
}

const PASTE_END: &[u8] = b"\x1b[201~";
/// More is not pasted into a line.
const MOST_PASTE: usize = 4 * 1024 * 1024;
/// No sequence of a key is as long.
const MOST_SEQUENCE: usize = 64;

/// Makes keys of bytes. What is not UTF-8 becomes U+FFFD.
#[derive(Debug, Default)]
pub struct Decoder {
    pending: Vec<u8>,
    is_pasting: bool,
}

/// What the beginning of the pending bytes is.
enum Found {
    /// So many bytes that are this key; or none worth having.
    Key(usize, Option<Key>),
    PasteStart(usize),
    /// Not to be told yet.
    More,
}

impl Decoder {
    /// Takes bytes; returns the keys that are complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.pending.extend_from_slice(bytes);
        let mut keys = Vec::new();
        loop {
            if self.is_pasting {
                let Some(pasted) = self.pasted() else {
                    return keys;
                };
                keys.push(pasted);
            }
            match first(&self.pending) {
                Found::Key(length, key) => {
                    self.pending.drain(..length.min(self.pending.len()));
                    keys.extend(key);
                }
                Found::PasteStart(length) => {
                    self.pending.drain(..length);
                    self.is_pasting = true;
                }
                Found::More => return keys,
            }
        }
    }

    /// Whether an escape waits for what may follow it. When nothing does, [`Self::flush`] takes it as a key.
    pub fn is_waiting(&self) -> bool {
        !self.is_pasting && !self.pending.is_empty()
    }

    /// Nothing followed.
    pub fn flush(&mut self) -> Vec<Key> {
        if !self.is_waiting() {
            return Vec::new();
        }
        let pending = std::mem::take(&mut self.pending);
        match pending.as_slice() {
            [0x1b] => vec![Key::Escape],
            [0x1b, rest @ ..] => {
                let mut keys = vec![Key::Escape];
                keys.extend(String::from_utf8_lossy(rest).chars().map(Key::Char));
                keys
            }
            _ => vec![Key::Char(char::REPLACEMENT_CHARACTER)],
        }
    }

    fn pasted(&mut self) -> Option<Key> {
        let end = self
            .pending
            .windows(PASTE_END.len())
            .position(|window| window == PASTE_END);
        if end.is_none() && self.pending.len() < MOST_PASTE {
            return None;
        }
        let end = end.unwrap_or(self.pending.len());
        let text = self.pending.drain(..end).collect::<Vec<u8>>();
        self.pending
            .drain(..PASTE_END.len().min(self.pending.len()));
        self.is_pasting = false;
        let text = String::from_utf8_lossy(&text)
            .replace("\r\n", "\n")
            .replace('\r', "\n");
        Some(Key::Paste(text))
    }
}

fn first(bytes: &[u8]) -> Found {
    let one = |key: Key| Found::Key(1, Some(key));
    match bytes {
        [] | [0x1b] | [0x1b, b'O'] => Found::More,
        [0x1b, b'[', rest @ ..] => control_sequence(rest),
        [0x1b, b'O', letter, ..] => Found::Key(3, letter_key(*letter, false)),
        [0x1b, 0x1b, ..] => one(Key::Escape),
        [0x1b, rest @ ..] => match first(rest) {
            Found::Key(length, key) => Found::Key(length + 1, key.map(with_alt)),
            other => other,
        },
        [b'\r', ..] => one(Key::Enter),
        [b'\t', ..] => one(Key::Tab),
        [0x7f | 0x08, ..] => one(Key::Backspace),
        [control @ 1..=26, ..] => one(Key::Ctrl(char::from(control + b'a' - 1))),
        [0..=0x1f, ..] => Found::Key(1, None),
        [ascii @ ..=0x7e, ..] => one(Key::Char(char::from(*ascii))),
        _ => unicode(bytes),
    }
}

fn unicode(bytes: &[u8]) -> Found {
    let start = bytes.get(..bytes.len().min(4)).unwrap_or_default();
    let (valid, error) = match str::from_utf8(start) {
        Ok(text) => (text, None),
        Err(error) => {
            let valid = start
                .get(..error.valid_up_to())
                .and_then(|valid| str::from_utf8(valid).ok());
            (valid.unwrap_or_default(), Some(error))
        }
    };
    match (valid.chars().next(), error) {
        (Some(character), _) => Found::Key(character.len_utf8(), Some(Key::Char(character))),
        (None, Some(error)) => match error.error_len() {
            Some(length) => Found::Key(length, Some(Key::Char(char::REPLACEMENT_CHARACTER))),
            None => Found::More,
        },
        (None, None) => Found::More,
    }
}

/// What follows `ESC [`.
fn control_sequence(rest: &[u8]) -> Found {
    let Some(end) = rest.iter().position(|byte| (0x40..=0x7e).contains(byte)) else {
        // No key: it is thrown away before it grows without end.
        return if rest.len() > MOST_SEQUENCE {
            Found::Key(rest.len() + 2, None)
        } else {
            Found::More
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
    // 2 is Shift, 3 Alt, 5 Ctrl, and their sums.
    let is_modified = number(1) > 2;
    let length = end + 3;
    let key = match (last, number(0)) {
        (b'~', 200) => return Found::PasteStart(length),
        (b'~', 1 | 7) => Some(Key::Home),
        (b'~', 4 | 8) => Some(Key::End),
        (b'~', 3) if is_modified => Some(Key::DeleteWord),
        (b'~', 3) => Some(Key::Delete),
        // Two ways of terminals to tell Enter with Shift, Alt or Ctrl from Enter.
        (b'~', 27) if number(2) == 13 => Some(Key::NewLine),
        (b'u', 13) if number(1) > 1 => Some(Key::NewLine),
        (b'u', 13) => Some(Key::Enter),
        (b'u', 27) => Some(Key::Escape),
        (b'Z', _) => Some(Key::BackTab),
        (letter, _) => letter_key(letter, is_modified),
    };
    Found::Key(length, key)
}

fn letter_key(letter: u8, is_modified: bool) -> Option<Key> {
    Some(match letter {
        b'A' => Key::Up,
        b'B' => Key::Down,
        b'C' if is_modified => Key::WordRight,
        b'C' => Key::Right,
        b'D' if is_modified => Key::WordLeft,
        b'D' => Key::Left,
        b'H' => Key::Home,
        b'F' => Key::End,
        b'M' => Key::Enter,
        _ => return None,
    })
}

fn with_alt(key: Key) -> Key {
    match key {
        Key::Enter | Key::Ctrl('j') => Key::NewLine,
        Key::Backspace => Key::AltBackspace,
        Key::Left | Key::Char('b' | 'B') => Key::WordLeft,
        Key::Right | Key::Char('f' | 'F') => Key::WordRight,
        Key::Delete | Key::Char('d' | 'D') => Key::DeleteWord,
        Key::Char(character) => Key::Alt(character),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_usual_terminals_are_known() {
        let rows: &[(&[u8], Key)] = &[
            (b"a", Key::Char('a')),
            ("é".as_bytes(), Key::Char('é')),
            ("🐙".as_bytes(), Key::Char('🐙')),
            (b"\r", Key::Enter),
            (b"\n", Key::Ctrl('j')),
            (b"\x1b\r", Key::NewLine),
            (b"\x1b[13;2u", Key::NewLine),
            (b"\x1b[27;2;13~", Key::NewLine),
            (b"\x01", Key::Ctrl('a')),
            (b"\x7f", Key::Backspace),
            (b"\x1b\x7f", Key::AltBackspace),
            (b"\x1b[A", Key::Up),
            (b"\x1bOA", Key::Up),
            (b"\x1b[1;5C", Key::WordRight),
            (b"\x1b[1;2C", Key::Right),
            (b"\x1bb", Key::WordLeft),
            (b"\x1bd", Key::DeleteWord),
            (b"\x1b[3~", Key::Delete),
            (b"\x1b[H", Key::Home),
            (b"\x1b[4~", Key::End),
            (b"\x1b[Z", Key::BackTab),
        ];
        for (bytes, key) in rows {
            assert_eq!(
                Decoder::default().feed(bytes),
                std::slice::from_ref(key),
                "{bytes:?}"
            );
            // However the bytes arrive.
            let mut decoder = Decoder::default();
            let split: Vec<Key> = bytes
                .iter()
                .flat_map(|byte| decoder.feed(&[*byte]))
                .collect();
            assert_eq!(split, std::slice::from_ref(key), "{bytes:?} byte by byte");
        }
    }

    #[test]
    fn a_paste_is_one_key_and_its_line_ends_stay() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.feed(b"\x1b[200~one\r\ntw"), []);
        assert!(!decoder.is_waiting());
        assert_eq!(
            decoder.feed(b"o\rthree\x1b[A\x1b[201~x"),
            [
                Key::Paste("one\ntwo\nthree\x1b[A".to_owned()),
                Key::Char('x')
            ]
        );
    }

    #[test]
    fn escape_alone_is_a_key_once_nothing_follows() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.feed(b"\x1b"), []);
        assert!(decoder.is_waiting());
        assert_eq!(decoder.flush(), [Key::Escape]);
        assert!(!decoder.is_waiting());
    }

    #[test]
    fn rubbish_is_no_key_and_does_no_harm() {
        let mut decoder = Decoder::default();
        assert_eq!(
            decoder.feed(b"\xff\xfea"),
            [Key::Char('\u{fffd}'), Key::Char('\u{fffd}'), Key::Char('a')]
        );
        assert_eq!(decoder.feed(b"\x1b[99;99;99Xb\x1b[12~"), [Key::Char('b')]);
        assert_eq!(
            decoder.feed(&[b"\x1b[".as_slice(), &[b'1'; 100]].concat()),
            []
        );
        assert_eq!(decoder.feed(b"c"), [Key::Char('c')]);
    }
}
