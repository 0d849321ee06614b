//! Token formats that are masked without registration.

use std::ops::Range;

/// Format of an issuer's tokens after their prefix.
pub(super) struct TokenPattern {
    pub(super) prefix: &'static str,
    /// Whether the prefix is part of the token.
    in_token: bool,
    /// Minimum number of characters after the prefix.
    min_chars: usize,
}

const fn prefixed_token(prefix: &'static str, min_chars: usize) -> TokenPattern {
    TokenPattern {
        prefix,
        in_token: true,
        min_chars,
    }
}

const fn token_after(prefix: &'static str) -> TokenPattern {
    TokenPattern {
        prefix,
        in_token: false,
        min_chars: 6,
    }
}

/// Known formats. Several model providers share `sk-`.
pub(super) const TOKEN_PATTERNS: &[TokenPattern] = &[
    prefixed_token("sk-", 8),
    prefixed_token("sk_live_", 8),
    prefixed_token("gsk_", 16),
    prefixed_token("xai-", 16),
    prefixed_token("hf_", 16),
    prefixed_token("AIza", 30),
    prefixed_token("ghp_", 16),
    prefixed_token("gho_", 16),
    prefixed_token("ghu_", 16),
    prefixed_token("ghs_", 16),
    prefixed_token("ghr_", 16),
    prefixed_token("github_pat_", 16),
    prefixed_token("glpat-", 16),
    prefixed_token("xoxb-", 8),
    prefixed_token("xoxp-", 8),
    prefixed_token("xoxa-", 8),
    prefixed_token("xoxs-", 8),
    prefixed_token("xapp-", 8),
    prefixed_token("AKIA", 16),
    token_after("Bearer "),
    token_after("bearer "),
    token_after("BEARER "),
];

impl TokenPattern {
    /// Returns the token whose prefix is at `prefix`, if the rest matches.
    pub(super) fn token_at(&self, text: &[u8], prefix: Range<usize>) -> Option<Range<usize>> {
        let before = prefix.start.checked_sub(1).and_then(|at| text.get(at));
        if before.is_some_and(|byte| is_token_byte(*byte)) {
            return None;
        }
        let allowed = if self.in_token {
            is_token_byte
        } else {
            is_bearer_byte
        };
        let rest = text.get(prefix.end..)?;
        let length = rest.iter().take_while(|byte| allowed(**byte)).count();
        let body = rest.get(..length)?;
        // Names such as `sk-learn-contrib` and "bearer authentication" are prose.
        let random = body
            .iter()
            .any(|byte| byte.is_ascii_digit() || (!self.in_token && byte.is_ascii_uppercase()));
        if length < self.min_chars || !(random || length >= 32) {
            return None;
        }
        let start = if self.in_token {
            prefix.start
        } else {
            prefix.end
        };
        Some(start..prefix.end + length)
    }
}

/// Finds Telegram bot tokens: a number, a colon, and about 35 characters.
pub(super) fn find_telegram_tokens(text: &[u8], spans: &mut Vec<Range<usize>>) {
    let mut from = 0;
    while let Some(at) = text
        .get(from..)
        .and_then(|rest| rest.iter().position(|byte| *byte == b':'))
    {
        let colon = from + at;
        from = colon + 1;
        let digits = text.get(..colon).unwrap_or_default().iter().rev();
        let digits = digits.take_while(|byte| byte.is_ascii_digit()).count();
        if digits < 6 {
            continue;
        }
        let body = text
            .get(from..)
            .unwrap_or_default()
            .iter()
            .take_while(|byte| is_token_byte(**byte))
            .count();
        if (30..=50).contains(&body) {
            spans.push(colon - digits..from + body);
        }
    }
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

fn is_bearer_byte(byte: u8) -> bool {
    is_token_byte(byte) || matches!(byte, b'.' | b'~' | b'+' | b'/' | b'=')
}
