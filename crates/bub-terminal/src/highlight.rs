//! Highlights source code line by line: comments, strings, numbers and keywords.
//!
//! What a language looks like is data, in `languages`. The scanner reads each character once, and its state between two
//! lines is at most one open quote. It is no parser: code that it misjudges gets a wrong color, never other text.

mod languages;

use self::languages::{LANGUAGES, Language, Quote, QuoteEnd, QuoteKind};
use crate::{Line, Style, sanitize::sanitize};

/// The style of code in a language without rules, and of inline code.
pub(crate) const CODE_STYLE: Style = Style::CYAN;
const COMMENT_STYLE: Style = Style::DIM;
const STRING_STYLE: Style = Style::GREEN;
const NUMBER_STYLE: Style = Style::CYAN;
const KEYWORD_STYLE: Style = Style::MAGENTA;

/// Highlights the lines of one code block in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Highlighter {
    rules: Rules,
    /// The comment or string that the last line left open.
    open: Option<&'static Quote>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Rules {
    /// The language is unknown: all code has one style.
    #[default]
    None,
    Diff,
    Language(&'static Language),
}

impl Highlighter {
    /// Creates a highlighter for a code block with this info string, whose first word names the language.
    pub(crate) fn new(info: &str) -> Self {
        let is_separator = |character: char| character.is_whitespace() || ",{".contains(character);
        let name = info.trim_start().split(is_separator).next();
        let name = name.unwrap_or_default().to_ascii_lowercase();
        let is_named = |language: &&Language| language.names.split(' ').any(|known| known == name);
        let rules = match LANGUAGES.iter().find(is_named) {
            Some(language) => Rules::Language(language),
            None if matches!(name.as_str(), "diff" | "patch") => Rules::Diff,
            None => Rules::None,
        };
        Self { rules, open: None }
    }

    /// Returns the next line of the code, sanitized. Tabs are kept, so that the code can be copied.
    pub(crate) fn line(&mut self, text: &str) -> Line {
        let text = sanitize(text);
        match self.rules {
            Rules::None => Line::new(text, CODE_STYLE),
            Rules::Diff => diff_line(&text),
            Rules::Language(language) => self.scan_line(language, &text),
        }
    }

    fn scan_line(&mut self, language: &'static Language, text: &str) -> Line {
        let mut line = Line::default();
        let mut rest = text;
        let mut is_word_start = true;
        while let Some(first) = rest.chars().next() {
            let (length, style) = match self.open {
                Some(quote) => self.scan_quoted(quote, rest, 0),
                None => self.scan_token(language, rest, first, is_word_start),
            };
            // A combining mark must stay in the span of the character before it.
            let tail = rest.get(length..).unwrap_or_default();
            let length = rest.len() - tail.trim_start_matches(|next: char| !next.is_ascii()).len();
            let (token, after) = rest.split_at_checked(length).unwrap_or((rest, ""));
            line.push(token, style);
            is_word_start = token.ends_with(char::is_whitespace);
            rest = after;
        }
        self.open.take_if(|quote| quote.end != QuoteEnd::AnyLine);
        line
    }

    /// Returns the length and the style of the token at the start of `rest`. A token has at least one byte.
    fn scan_token(
        &mut self,
        language: &'static Language,
        rest: &str,
        first: char,
        is_word_start: bool,
    ) -> (usize, Style) {
        if let Some(quote) = language.quotes.iter().find(|quote| quote.opens(rest)) {
            return self.scan_quoted(quote, rest, quote.open.len());
        }
        // In `$#` and `a#b`, the mark starts no comment.
        let mut comments = language.line_comments.split_whitespace();
        if comments.any(|mark| rest.starts_with(mark)) && (first != '#' || is_word_start) {
            return (rest.len(), COMMENT_STYLE);
        }
        if !(first.is_ascii_alphanumeric() || first == '_') {
            return (first.len_utf8(), Style::NONE);
        }
        let is_number = first.is_ascii_digit();
        let mut following = rest.bytes().skip(1).peekable();
        let mut length = 1;
        while let Some(byte) = following.next() {
            let is_part = match byte {
                b'.' => is_number && following.peek().is_some_and(u8::is_ascii_digit),
                byte => byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii(),
            };
            if !is_part {
                break;
            }
            length += 1;
        }
        let style = match rest.get(..length) {
            _ if is_number => NUMBER_STYLE,
            Some(word) if language.has_keyword(word) => KEYWORD_STYLE,
            _ => Style::NONE,
        };
        (length, style)
    }

    /// Returns the length and the style of a comment or string, of which `start` bytes are known.
    fn scan_quoted(&mut self, quote: &'static Quote, rest: &str, start: usize) -> (usize, Style) {
        let style = match quote.kind {
            QuoteKind::Comment => COMMENT_STYLE,
            QuoteKind::Escaped | QuoteKind::Raw => STRING_STYLE,
        };
        let end = quote.find_end(rest, start);
        self.open = end.is_none().then_some(quote);
        (end.unwrap_or(rest.len()), style)
    }
}

impl Quote {
    /// Returns whether a comment or string starts here. A character literal must also end here, because the same mark
    /// starts a lifetime in Rust.
    fn opens(&self, rest: &str) -> bool {
        let Some(content) = rest.strip_prefix(self.open) else {
            return false;
        };
        if self.end != QuoteEnd::OneChar {
            return true;
        }
        let mut following = content.chars();
        match following.next() {
            Some('\\') => true,
            Some(_) => following.as_str().starts_with(self.close),
            None => false,
        }
    }

    /// Returns the offset after the closing mark, searching from `start`.
    fn find_end(&self, rest: &str, start: usize) -> Option<usize> {
        let mut is_escaped = false;
        let content = rest.get(start..)?;
        for (offset, character) in content.char_indices() {
            if std::mem::take(&mut is_escaped) {
                continue;
            }
            if content.get(offset..)?.starts_with(self.close) {
                return Some(start + offset + self.close.len());
            }
            is_escaped = self.kind == QuoteKind::Escaped && character == '\\';
        }
        None
    }
}

impl Language {
    fn has_keyword(&self, word: &str) -> bool {
        self.keywords.split(' ').any(|keyword| {
            keyword == word || self.ignores_case && keyword.eq_ignore_ascii_case(word)
        })
    }
}

/// Returns a line of a unified diff with its color.
pub(crate) fn diff_line(text: &str) -> Line {
    let style = match text.as_bytes() {
        [b'+', b'+', b'+', ..] | [b'-', b'-', b'-', ..] => Style::BOLD,
        [b'+', ..] => Style::GREEN,
        [b'-', ..] => Style::RED,
        [b'@', b'@', ..] => Style::CYAN,
        _ if text.starts_with("diff --git ") => Style::BOLD,
        _ => Style::NONE,
    };
    Line::new(text, style)
}

#[cfg(test)]
mod tests;
