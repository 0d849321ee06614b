//! Styled inline text and its line wrapping.

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use crate::{Line, Style, columns, sanitize::sanitize, split_at_width};

/// The inline text of one block: pieces of text with their styles. A `\n` is a hard line break.
#[derive(Debug, Clone, Default)]
pub(super) struct InlineText {
    pieces: Vec<(String, Style)>,
}

impl InlineText {
    /// Sanitizes a text and adds it as a piece. Each tab becomes a space.
    pub(super) fn push(&mut self, text: &str, style: Style) {
        let text = sanitize(text).replace('\t', " ");
        self.pieces.push((text, style));
    }

    pub(super) fn append(&mut self, other: Self) {
        self.pieces.extend(other.pieces);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.iter().all(|(text, _)| text.is_empty())
    }

    /// Returns the number of pieces, for [`text_from`](Self::text_from).
    pub(super) fn piece_count(&self) -> usize {
        self.pieces.len()
    }

    /// Returns the text of the pieces from index `mark` on.
    pub(super) fn text_from(&self, mark: usize) -> String {
        let pieces = self.pieces.iter().skip(mark);
        pieces.map(|(text, _)| text.as_str()).collect()
    }

    /// Adds a style to all pieces.
    pub(super) fn with_style(mut self, style: Style) -> Self {
        self.pieces.iter_mut().for_each(|piece| piece.1 |= style);
        self
    }

    /// Returns two widths in columns: of the longest line, and of the longest part of a word that wrapping does not
    /// break.
    pub(super) fn max_widths(&self) -> (usize, usize) {
        let text = self.text_from(0);
        let line = text.split('\n').map(columns).max();
        let word = text.split([' ', '\n']).map(unbreakable_width).max();
        (line.unwrap_or(0), word.unwrap_or(0))
    }

    /// Wraps the text at `width` columns: at spaces, and before wide characters such as Chinese. Other words are broken
    /// only if they are longer than a line.
    pub(super) fn wrap(&self, width: usize) -> Vec<Line> {
        let mut wrap = LineWrapper {
            width: width.max(2),
            ..LineWrapper::default()
        };
        for (text, style) in &self.pieces {
            for part in text.split_inclusive([' ', '\n']) {
                let word = part.trim_end_matches([' ', '\n']);
                wrap.add_word(word, *style);
                match part.as_bytes().last() {
                    Some(b' ') => wrap.add_space(*style),
                    Some(b'\n') => {
                        wrap.place_word();
                        wrap.break_line();
                    }
                    _ => {}
                }
            }
        }
        wrap.place_word();
        if !wrap.line.spans.is_empty() {
            wrap.lines.push(wrap.line);
        }
        wrap.lines
    }
}

/// Wraps words into lines.
#[derive(Default)]
struct LineWrapper<'a> {
    width: usize,
    lines: Vec<Line>,
    line: Line,
    used_width: usize,
    /// The current word. Its parts can come from several pieces of the text, with different styles.
    word: Vec<(&'a str, Style)>,
    word_width: usize,
    /// Number of spaces before the word.
    spaces: usize,
    space_style: Style,
}

impl<'a> LineWrapper<'a> {
    /// Adds text to the current word. The word may be broken before a wide character.
    fn add_word(&mut self, text: &'a str, style: Style) {
        if text.is_empty() {
            return;
        }
        if text.is_ascii() {
            self.word.push((text, style));
            self.word_width += text.len();
            return;
        }
        for cluster in text.graphemes(true) {
            if can_break_before(cluster) {
                self.place_word();
            }
            self.word.push((cluster, style));
            self.word_width += cluster.width();
        }
    }

    fn add_space(&mut self, style: Style) {
        self.place_word();
        self.spaces += 1;
        self.space_style = style;
    }

    fn break_line(&mut self) {
        self.spaces = 0;
        self.used_width = 0;
        self.lines.push(std::mem::take(&mut self.line));
    }

    /// Adds the current word to the line, or to the next line if it does not fit.
    fn place_word(&mut self) {
        if self.word.is_empty() {
            return;
        }
        let width = std::mem::take(&mut self.word_width);
        if self.used_width > 0 && self.used_width + self.spaces + width > self.width {
            self.break_line();
        }
        let spaces = std::mem::take(&mut self.spaces);
        if self.used_width > 0 {
            (0..spaces).for_each(|_| self.line.push(" ", self.space_style));
            self.used_width += spaces;
        }
        for (mut rest, style) in self.word.drain(..) {
            while !rest.is_empty() {
                let available_width = self.width.saturating_sub(self.used_width);
                let (mut fitting, mut remaining) = split_at_width(rest, available_width);
                if fitting.is_empty() && self.used_width == 0 {
                    // A single grapheme cluster is wider than a line. It is not split.
                    let cluster = rest.graphemes(true).next().unwrap_or(rest);
                    (fitting, remaining) = rest.split_at(cluster.len());
                }
                self.line.push(fitting, style);
                self.used_width += columns(fitting);
                rest = remaining;
                if !rest.is_empty() {
                    self.lines.push(std::mem::take(&mut self.line));
                    self.used_width = 0;
                }
            }
        }
    }
}

/// Returns the width in columns of the longest part of a word that wrapping does not break.
fn unbreakable_width(word: &str) -> usize {
    if word.is_ascii() {
        return word.len();
    }
    let (mut longest, mut part) = (0, 0);
    for cluster in word.graphemes(true) {
        if can_break_before(cluster) {
            part = 0;
        }
        part += cluster.width();
        longest = longest.max(part);
    }
    longest
}

/// Returns whether a word may be broken before a cluster: it is wide, and not punctuation that must not start a line.
fn can_break_before(cluster: &str) -> bool {
    const CLOSING_PUNCTUATION: &str = "，。、！？；：）」』】》〉…";
    cluster.width() > 1 && !CLOSING_PUNCTUATION.contains(cluster)
}
