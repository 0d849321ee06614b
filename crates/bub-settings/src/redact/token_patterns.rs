//! Token formats that are masked without registration.

use std::collections::VecDeque;
use std::ops::Range;

use super::scanner::add_span;

/// Format of a kind of token: a fixed prefix and a minimum number of characters after it.
struct TokenPattern(&'static str, usize);

/// Known formats. Several model providers share `sk-`.
const TOKEN_PATTERNS: &[TokenPattern] = &[
    TokenPattern("sk-", 8),
    TokenPattern("sk_live_", 8),
    TokenPattern("gsk_", 16),
    TokenPattern("xai-", 16),
    TokenPattern("hf_", 16),
    TokenPattern("AIza", 30),
    TokenPattern("ghp_", 16),
    TokenPattern("gho_", 16),
    TokenPattern("ghu_", 16),
    TokenPattern("ghs_", 16),
    TokenPattern("ghr_", 16),
    TokenPattern("github_pat_", 16),
    TokenPattern("glpat-", 16),
    TokenPattern("xoxb-", 8),
    TokenPattern("xoxp-", 8),
    TokenPattern("xoxa-", 8),
    TokenPattern("xoxs-", 8),
    TokenPattern("xapp-", 8),
    TokenPattern("AKIA", 16),
];
/// Length of the longest prefix.
const MAX_PREFIX_BYTES: usize = "github_pat_".len();

/// Minimum length of the token after `Bearer `.
const MIN_BEARER_BYTES: usize = 6;
/// Length from which a token needs no digit. Shorter ones without a digit, such as
/// `sk-learn-contrib`, are prose.
const MIN_UNIFORM_BYTES: usize = 32;

/// Number of digits before the colon of a Telegram bot token. Further digits are not part of it.
const BOT_ID_DIGITS: Range<usize> = 6..20;
/// Length of a Telegram bot token after the colon, with a margin.
const BOT_TOKEN_BYTES: Range<usize> = 30..51;

/// Finds tokens in a text that arrives byte by byte.
#[derive(Default)]
pub(super) struct TokenScanner {
    /// First bytes of the current word, a run of letters, digits, `_` and `-`.
    word: [u8; MAX_PREFIX_BYTES],
    word_bytes: usize,
    /// Number of digits at the end of the current word.
    digits: usize,
    token: Option<TokenBody>,
    /// A Telegram bot token: a number, a colon, and about 35 characters.
    bot_token: Option<TokenBody>,
}

/// A token of which the beginning has arrived.
struct TokenBody {
    start: usize,
    min_bytes: usize,
    is_bearer: bool,
    /// Number of bytes after the prefix.
    bytes: usize,
    /// Whether a byte looks random.
    is_random: bool,
}

impl TokenScanner {
    /// Reads the byte at `position`, and adds the tokens that end before it to `spans`.
    pub(super) fn read(&mut self, byte: u8, position: usize, spans: &mut VecDeque<Range<usize>>) {
        if let Some(token) = &mut self.token
            && !token.read(byte)
        {
            add_span(spans, token.range(position));
            self.token = None;
        }
        if let Some(token) = &mut self.bot_token
            && (!token.read(byte) || token.bytes >= BOT_TOKEN_BYTES.end)
        {
            add_span(spans, token.bot_range(position));
            self.bot_token = None;
        }
        self.read_word(byte, position);
    }

    /// Updates the current word, and starts a token if it ends with a prefix.
    fn read_word(&mut self, byte: u8, position: usize) {
        if is_token_byte(byte) {
            if let Some(last) = self.word.get_mut(self.word_bytes) {
                *last = byte;
            }
            self.word_bytes += 1;
            self.digits = if byte.is_ascii_digit() {
                self.digits + 1
            } else {
                0
            };
            if self.token.is_none() && matches!(byte, b'-' | b'_' | b'a' | b'A') {
                let mut patterns = TOKEN_PATTERNS.iter();
                let word = self.word_start();
                let pattern = patterns.find(|pattern| Some(pattern.0.as_bytes()) == word);
                self.token = pattern.map(|TokenPattern(prefix, min_bytes)| {
                    TokenBody::new(position + 1 - prefix.len(), *min_bytes, false)
                });
            }
            return;
        }
        let word = self.word_start().unwrap_or_default();
        if byte == b' ' && matches!(word, b"Bearer" | b"bearer" | b"BEARER") {
            self.token = Some(TokenBody::new(position + 1, MIN_BEARER_BYTES, true));
        }
        if byte == b':' && self.digits >= BOT_ID_DIGITS.start {
            let start = position - self.digits.min(BOT_ID_DIGITS.end);
            self.bot_token = Some(TokenBody::new(start, BOT_TOKEN_BYTES.start, false));
        }
        (self.word_bytes, self.digits) = (0, 0);
    }

    /// Adds the tokens that end at `position` if the text ends there.
    pub(super) fn end(&self, position: usize, spans: &mut VecDeque<Range<usize>>) {
        let token = self.token.as_ref();
        add_span(spans, token.and_then(|token| token.range(position)));
        let token = self.bot_token.as_ref();
        add_span(spans, token.and_then(|token| token.bot_range(position)));
    }

    /// Returns the first byte before `position` that may belong to a token, or `position`.
    pub(super) fn partial_start(&self, position: usize) -> usize {
        let bodies = [&self.token, &self.bot_token].into_iter().flatten();
        let number = position - self.digits.min(BOT_ID_DIGITS.end);
        let is_prefix = self.word_start().is_some_and(|word| {
            TOKEN_PATTERNS
                .iter()
                .any(|pattern| pattern.0.as_bytes().starts_with(word))
        });
        let word = if is_prefix {
            position - self.word_bytes
        } else {
            position
        };
        bodies
            .map(|body| body.start)
            .chain([number, word])
            .min()
            .unwrap_or(position)
    }

    /// Returns the current word, unless it is longer than every prefix.
    fn word_start(&self) -> Option<&[u8]> {
        self.word.get(..self.word_bytes)
    }
}

impl TokenBody {
    fn new(start: usize, min_bytes: usize, is_bearer: bool) -> Self {
        Self {
            start,
            min_bytes,
            is_bearer,
            bytes: 0,
            is_random: false,
        }
    }

    /// Adds a byte. Returns `false` if it cannot be part of the token.
    fn read(&mut self, byte: u8) -> bool {
        let is_bearer_byte = matches!(byte, b'.' | b'~' | b'+' | b'/' | b'=');
        let is_part = is_token_byte(byte) || (self.is_bearer && is_bearer_byte);
        self.bytes += usize::from(is_part);
        self.is_random |= byte.is_ascii_digit() || (self.is_bearer && byte.is_ascii_uppercase());
        is_part
    }

    fn range(&self, end: usize) -> Option<Range<usize>> {
        let is_random = self.is_random || self.bytes >= MIN_UNIFORM_BYTES;
        (self.bytes >= self.min_bytes && is_random).then_some(self.start..end)
    }

    fn bot_range(&self, end: usize) -> Option<Range<usize>> {
        BOT_TOKEN_BYTES
            .contains(&self.bytes)
            .then_some(self.start..end)
    }
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}
