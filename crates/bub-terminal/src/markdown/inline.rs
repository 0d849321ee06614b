//! Styled inline text and its line wrapping.

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use crate::{Line, Style, columns, fit, sanitize::sanitize};

/// The text of one block: pieces with their styles. A `\n` is a hard line break.
#[derive(Debug, Clone, Default)]
pub(super) struct InlineText {
    pieces: Vec<(String, Style)>,
}

impl InlineText {
    pub(super) fn push(&mut self, text: &str, style: Style) {
        let text = sanitize(text);
        let text = if text.contains('\t') {
            text.replace('\t', " ")
        } else {
            text.into_owned()
        };
        self.pieces.push((text, style));
    }

    pub(super) fn append(&mut self, other: Self) {
        self.pieces.extend(other.pieces);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.iter().all(|(text, _)| text.is_empty())
    }

    /// Returns the number of pieces, for [`text_from`](Self::text_from).
    pub(super) fn mark(&self) -> usize {
        self.pieces.len()
    }

    pub(super) fn text_from(&self, mark: usize) -> String {
        self.pieces
            .iter()
            .skip(mark)
            .map(|(text, _)| text.as_str())
            .collect()
    }

    /// Adds a style to all pieces.
    pub(super) fn with_style(mut self, style: Style) -> Self {
        self.pieces.iter_mut().for_each(|piece| piece.1 |= style);
        self
    }

    /// Returns the width in columns of the longest line and of the longest word.
    pub(super) fn extent(&self) -> (usize, usize) {
        let text = self.text_from(0);
        let line = text.split('\n').map(columns).max();
        let word = text.split([' ', '\n']).map(unbreakable_width).max();
        (line.unwrap_or(0), word.unwrap_or(0))
    }

    /// Wraps the text at `width` columns: at spaces and beside wide characters. A word is broken only if it is longer
    /// than a line.
    pub(super) fn wrap(&self, width: usize) -> Vec<Line> {
        let mut wrap = LineWrapper {
            width: width.max(2),
            ..LineWrapper::default()
        };
        for (text, style) in &self.pieces {
            for part in text.split_inclusive([' ', '\n']) {
                let word = part.trim_end_matches([' ', '\n']);
                wrap.add(word, *style);
                match part.as_bytes().last() {
                    Some(b' ') => wrap.space(*style),
                    Some(b'\n') => wrap.end_line(),
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

#[derive(Default)]
struct LineWrapper<'a> {
    width: usize,
    lines: Vec<Line>,
    line: Line,
    used: usize,
    /// The current word, possibly from several pieces.
    word: Vec<(&'a str, Style)>,
    word_width: usize,
    /// Number of spaces before the word.
    spaces: usize,
    space_style: Style,
}

impl<'a> LineWrapper<'a> {
    fn add(&mut self, text: &'a str, style: Style) {
        if text.is_empty() {
            return;
        }
        if text.is_ascii() {
            self.word.push((text, style));
            self.word_width += text.len();
            return;
        }
        for cluster in text.graphemes(true) {
            let is_wide = cluster.width() > 1;
            if is_wide && !is_closing_punctuation(cluster) {
                self.place_word();
            }
            self.word.push((cluster, style));
            self.word_width += cluster.width();
        }
    }

    fn space(&mut self, style: Style) {
        self.place_word();
        self.spaces += 1;
        self.space_style = style;
    }

    fn end_line(&mut self) {
        self.place_word();
        self.next_line();
    }

    fn next_line(&mut self) {
        self.spaces = 0;
        self.used = 0;
        self.lines.push(std::mem::take(&mut self.line));
    }

    fn place_word(&mut self) {
        if self.word.is_empty() {
            return;
        }
        let width = std::mem::take(&mut self.word_width);
        if self.used > 0 && self.used + self.spaces + width > self.width {
            self.next_line();
        }
        let spaces = std::mem::take(&mut self.spaces);
        if self.used > 0 {
            (0..spaces).for_each(|_| self.line.push(" ", self.space_style));
            self.used += spaces;
        }
        for (mut rest, style) in self.word.drain(..) {
            while !rest.is_empty() {
                let (mut here, mut later) = fit(rest, self.width.saturating_sub(self.used));
                if here.is_empty() && self.used == 0 {
                    // A cluster that is wider than a line.
                    (here, later) =
                        rest.split_at(rest.graphemes(true).next().map_or(rest.len(), str::len));
                }
                self.line.push(here, style);
                self.used += columns(here);
                rest = later;
                if !rest.is_empty() {
                    self.lines.push(std::mem::take(&mut self.line));
                    self.used = 0;
                }
            }
        }
    }
}

/// Returns the width in columns of the longest part of a word that is not broken.
fn unbreakable_width(word: &str) -> usize {
    if word.is_ascii() {
        return word.len();
    }
    let (mut longest, mut part) = (0, 0);
    for cluster in word.graphemes(true) {
        part = if cluster.width() > 1 && !is_closing_punctuation(cluster) {
            0
        } else {
            part
        } + cluster.width();
        longest = longest.max(part);
    }
    longest
}

/// Whether the cluster is punctuation that must not start a line.
fn is_closing_punctuation(cluster: &str) -> bool {
    const CLOSING_PUNCTUATION: &str = "，。、！？；：）」』】》〉…";
    CLOSING_PUNCTUATION.contains(cluster)
}
