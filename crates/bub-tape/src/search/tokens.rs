//! Splits text into the terms that searches compare.
//!
//! A term is a word, or two neighboring characters of a writing system without spaces between words, such as Chinese.
//! Terms are folded: compatibility forms, case and accents do not matter. The index contains the stems of words.

use std::{borrow::Cow, ops::Range, sync::LazyLock};

use icu_normalizer::{ComposingNormalizerBorrowed, DecomposingNormalizerBorrowed};

use super::stem;
use crate::query::fold::fold_char;

/// Maximum length of a word in bytes. The rest of a longer word is ignored.
pub(super) const MAX_WORD_BYTES: usize = 64;
/// End of the range of characters whose base letters are in [`BASE_LETTERS`].
const BASE_LETTERS_END: usize = 0x600;

/// A term of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    /// The folded word or pair of characters. It is valid UTF-8, except for a truncated word.
    pub(crate) text: &'a [u8],
    /// Byte offset of the term in the normalized text.
    pub(crate) start: usize,
}

impl Token<'_> {
    /// Returns the hash of the term's stem, as it is stored in the index.
    pub(crate) fn stem_hash(&self) -> u32 {
        hash_term(stem::stem(self.text, &mut [0; MAX_WORD_BYTES]))
    }
}

/// The kind of a character for splitting text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CharClass {
    Separator,
    /// A letter or digit of a word.
    Word,
    /// A character of a writing system without spaces between words.
    Gram,
    /// An accent or an invisible character, which does not end a word.
    Ignored,
}

/// Whether a byte is an ASCII letter or digit.
static ASCII_WORD: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        #[expect(clippy::indexing_slicing, reason = "the index is below 128")]
        {
            table[byte as usize] = byte.is_ascii_alphanumeric();
        }
        byte += 1;
    }
    table
};

/// The letters without their accents, for characters of European writing systems.
static BASE_LETTERS: LazyLock<Vec<char>> = LazyLock::new(|| {
    let decompose = DecomposingNormalizerBorrowed::new_nfkd();
    let base = |code: usize| {
        let character = u32::try_from(code).ok().and_then(char::from_u32)?;
        let text = decompose
            .normalize(character.encode_utf8(&mut [0; 4]))
            .into_owned();
        text.chars().next()
    };
    (0..BASE_LETTERS_END)
        .map(|code| base(code).unwrap_or(' '))
        .collect()
});

/// Returns the text in the normalization form NFKC.
pub(crate) fn normalize(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    ComposingNormalizerBorrowed::new_nfkc().normalize(text)
}

/// Calls `sink` with each term of a normalized text.
pub(crate) fn for_each_token(text: &str, sink: &mut impl FnMut(Token<'_>)) {
    let bytes = text.as_bytes();
    let mut word = WordBuffer::default();
    let mut offset = 0;
    while let Some(rest) = bytes.get(offset..).filter(|rest| !rest.is_empty()) {
        let letters = rest.iter().take_while(|byte| is_ascii_word(**byte)).count();
        let run = rest.get(..letters).unwrap_or_default();
        if word.length == 0 && rest.get(letters).is_none_or(u8::is_ascii) && is_folded(run) {
            // Most words need no copy.
            if !run.is_empty() {
                sink(Token {
                    text: run,
                    start: offset,
                });
            }
            offset += letters + 1;
            continue;
        }
        word.push_ascii(run, offset);
        offset += letters;
        let Some(next) = rest.get(letters) else {
            break;
        };
        if next.is_ascii() {
            word.finish(sink);
            offset += 1;
            continue;
        }
        let Some(character) = text.get(offset..).and_then(|rest| rest.chars().next()) else {
            return;
        };
        let end = offset + character.len_utf8();
        match char_class(character) {
            CharClass::Separator => word.finish(sink),
            CharClass::Ignored => {}
            CharClass::Word => word.push_char(fold_letter(character), offset),
            CharClass::Gram => {
                word.finish(sink);
                end_of_grams(text, offset..end, sink, &mut offset);
                continue;
            }
        }
        offset = end;
    }
    word.finish(sink);
}

/// Returns whether a byte is an ASCII letter or digit.
#[inline]
fn is_ascii_word(byte: u8) -> bool {
    ASCII_WORD.get(usize::from(byte)).copied().unwrap_or(false)
}

/// Returns whether ASCII letters and digits are a word as they are.
#[inline]
fn is_folded(run: &[u8]) -> bool {
    run.len() <= MAX_WORD_BYTES && !run.iter().any(u8::is_ascii_uppercase)
}

/// Passes the pairs of a run of characters to `sink`, or the only character of a run. Sets `offset` to the end of the
/// run.
fn end_of_grams(
    text: &str,
    first: Range<usize>,
    sink: &mut impl FnMut(Token<'_>),
    offset: &mut usize,
) {
    let mut previous = first.clone();
    for character in text.get(first.end..).unwrap_or_default().chars() {
        if char_class(character) != CharClass::Gram {
            break;
        }
        let end = previous.end + character.len_utf8();
        if let Some(pair) = text.as_bytes().get(previous.start..end) {
            sink(Token {
                text: pair,
                start: previous.start,
            });
        }
        previous = previous.end..end;
    }
    if let Some(single) = text
        .as_bytes()
        .get(first.clone())
        .filter(|_| previous == first)
    {
        sink(Token {
            text: single,
            start: first.start,
        });
    }
    *offset = previous.end;
}

/// The folded letters of the current word.
struct WordBuffer {
    bytes: [u8; MAX_WORD_BYTES],
    length: usize,
    start: usize,
}

impl Default for WordBuffer {
    fn default() -> Self {
        Self {
            bytes: [0; MAX_WORD_BYTES],
            length: 0,
            start: 0,
        }
    }
}

impl WordBuffer {
    /// Adds ASCII letters and digits.
    #[inline]
    fn push_ascii(&mut self, letters: &[u8], offset: usize) {
        if self.length == 0 {
            self.start = offset;
        }
        let free = self.bytes.get_mut(self.length..).unwrap_or_default();
        let length = letters.len().min(free.len());
        if let (Some(slot), Some(letters)) = (free.get_mut(..length), letters.get(..length)) {
            slot.copy_from_slice(letters);
            slot.make_ascii_lowercase();
        }
        self.length += length;
    }

    fn push_char(&mut self, character: char, offset: usize) {
        self.push_ascii(character.encode_utf8(&mut [0; 4]).as_bytes(), offset);
    }

    #[inline]
    fn finish(&mut self, sink: &mut impl FnMut(Token<'_>)) {
        if self.length == 0 {
            return;
        }
        if let Some(text) = self.bytes.get(..self.length) {
            sink(Token {
                text,
                start: self.start,
            });
        }
        self.length = 0;
    }
}

fn char_class(character: char) -> CharClass {
    match u32::from(character) {
        // Thai, Lao, Myanmar, Khmer; kana; Han; Hangul; rare Han.
        0xe00..=0xeff
        | 0x1000..=0x109f
        | 0x1780..=0x17ff
        | 0x3041..=0x3096
        | 0x30a1..=0x30ff
        | 0x3400..=0x9fff
        | 0xac00..=0xd7a3
        | 0xf900..=0xfaff
        | 0x20000..=0x3ffff => CharClass::Gram,
        // Soft hyphen, accents, points of Hebrew and Arabic, zero-width characters, variation selectors.
        0xad
        | 0x300..=0x36f
        | 0x483..=0x487
        | 0x591..=0x5c7
        | 0x610..=0x61a
        | 0x64b..=0x65f
        | 0x670
        | 0x1ab0..=0x1aff
        | 0x1dc0..=0x1dff
        | 0x200b..=0x200d
        | 0x20d0..=0x20ff
        | 0x3099..=0x309a
        | 0xfe00..=0xfe0f
        | 0xfe20..=0xfe2f => CharClass::Ignored,
        _ if character.is_alphanumeric() => CharClass::Word,
        _ => CharClass::Separator,
    }
}

/// Returns a letter without case and accent.
fn fold_letter(character: char) -> char {
    let base = BASE_LETTERS.get(character as usize).copied();
    fold_char(base.unwrap_or(character))
}

/// Returns the hash of a term.
pub(crate) fn hash_term(term: &[u8]) -> u32 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut hash = term.len() as u64;
    let (chunks, rest) = term.as_chunks::<8>();
    for chunk in chunks {
        hash = (hash.rotate_left(23) ^ u64::from_le_bytes(*chunk)).wrapping_mul(MULTIPLIER);
    }
    // The first and the last four bytes, which overlap.
    let rest = match (rest.first_chunk::<4>(), rest.last_chunk::<4>()) {
        (Some(first), Some(last)) => {
            u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32
        }
        _ => rest
            .iter()
            .fold(0, |value, byte| value << 8 | u64::from(*byte)),
    };
    hash = (hash.rotate_left(23) ^ rest).wrapping_mul(MULTIPLIER);
    hash ^= hash >> 32;
    u32::try_from(hash.wrapping_mul(MULTIPLIER) >> 32).unwrap_or_default()
}
