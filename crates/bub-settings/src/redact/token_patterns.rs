//! Token formats that are masked without registration.

use std::ops::Range;

/// Format of a kind of token: a fixed prefix and a minimum number of characters after it.
///
/// The prefix is part of the token, unless it ends with a space.
pub(super) struct TokenPattern(pub(super) &'static str, usize);

/// Known formats. Several model providers share `sk-`.
pub(super) const TOKEN_PATTERNS: &[TokenPattern] = &[
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
    TokenPattern("Bearer ", 6),
    TokenPattern("bearer ", 6),
    TokenPattern("BEARER ", 6),
];

impl TokenPattern {
    /// Returns the byte range of the token whose prefix is at `prefix`, or `None` if the text after
    /// the prefix does not match the format.
    pub(super) fn token_at(&self, text: &[u8], prefix: Range<usize>) -> Option<Range<usize>> {
        let before = prefix.start.checked_sub(1).and_then(|at| text.get(at));
        if before.is_some_and(|byte| is_token_byte(*byte)) {
            return None;
        }
        let Self(name, min_chars) = self;
        let in_token = !name.ends_with(' ');
        let allowed = if in_token {
            is_token_byte
        } else {
            is_bearer_byte
        };
        let rest = text.get(prefix.end..)?;
        let length = rest.iter().take_while(|byte| allowed(**byte)).count();
        let mut body = rest.iter().take(length);
        // Names such as `sk-learn-contrib` and "bearer authentication" are prose.
        let random =
            body.any(|byte| byte.is_ascii_digit() || (!in_token && byte.is_ascii_uppercase()));
        let start = if in_token { prefix.start } else { prefix.end };
        (length >= *min_chars && (random || length >= 32)).then_some(start..prefix.end + length)
    }
}

/// Finds Telegram bot tokens: a number, a colon, and about 35 characters.
pub(super) fn find_telegram_tokens(text: &[u8], spans: &mut Vec<Range<usize>>) {
    for colon in memchr::memchr_iter(b':', text) {
        let (digits, body) = text.split_at(colon);
        let digits = digits
            .iter()
            .rev()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let body = body
            .iter()
            .skip(1)
            .take_while(|byte| is_token_byte(**byte))
            .count();
        if digits >= 6 && (30..=50).contains(&body) {
            spans.push(colon - digits..colon + 1 + body);
        }
    }
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

fn is_bearer_byte(byte: u8) -> bool {
    is_token_byte(byte) || matches!(byte, b'.' | b'~' | b'+' | b'/' | b'=')
}
