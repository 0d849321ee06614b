//! Layout of Markdown while it streams.
//!
//! [`Markdown::push`] returns lines as soon as they are final: blocks when they end, code line by line, lists item by
//! item. Lines depend only on the text and the width, never on how the stream was split. Unfinished text is bounded: a
//! block longer than [`MAX_BLOCK_BYTES`] continues as another block, so that each delta costs the same.
//!
//! Limitation: a link definition (`[name]: address`) applies only in its own block. It is shown verbatim, and so is a
//! link that refers to a definition in another block. Footnotes and HTML are also shown verbatim.
//!
//! * `start`: recognizes the block that a line starts.
//! * `blocks`: groups lines into blocks.
//! * `layout`, `inline`, `table`: lay out a block as lines of the screen.

mod blocks;
mod inline;
mod layout;
mod start;
mod table;
#[cfg(test)]
mod tests;

use crate::{Line, Span, split_at_width};

use blocks::Blocks;

/// Maximum number of source bytes that are laid out at once.
pub const MAX_BLOCK_BYTES: usize = 16 * 1024;

/// How Markdown elements are marked in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkdownStyle {
    /// With text styles. The marks of the source are removed.
    Styled,
    /// With the marks of the source for emphasis, code and headings. No styles are used.
    Plain,
}

impl MarkdownStyle {
    fn bullet_marker(self) -> &'static str {
        match self {
            Self::Styled => "• ",
            Self::Plain => "- ",
        }
    }

    fn quote_prefix(self) -> &'static str {
        match self {
            Self::Styled => "│ ",
            Self::Plain => "> ",
        }
    }
}

/// A Markdown text that is laid out while it grows.
///
/// ```
/// use bub_terminal::markdown::{MarkdownStyle, Markdown};
///
/// let mut answer = Markdown::new(80, MarkdownStyle::Styled);
/// assert!(answer.push("Hel").is_empty());
/// assert_eq!(answer.unfinished_tail(10)[0].text(), "Hel");
/// assert_eq!(answer.push("lo\n\n- one")[0].text(), "Hello");
/// assert_eq!(answer.finish()[1].text(), "• one");
/// ```
#[derive(Debug, Clone)]
pub struct Markdown {
    /// The last line, which has no line ending yet.
    partial: String,
    /// Whether the last character was a carriage return. A line feed that follows belongs to the same line ending.
    ends_with_cr: bool,
    /// Whether `partial` continues a line that was too long.
    is_continuation: bool,
    blocks: Blocks,
}

impl Markdown {
    /// Creates an empty text for a terminal with `width` columns.
    pub fn new(width: usize, style: MarkdownStyle) -> Self {
        Self {
            partial: String::new(),
            ends_with_cr: false,
            is_continuation: false,
            blocks: Blocks::new(width, style),
        }
    }

    /// Sets the width in columns. Finished lines do not change.
    pub fn set_width(&mut self, width: usize) {
        self.blocks.set_width(width);
    }

    /// Adds text and returns the lines that it finishes. Only code lines may be wider than the terminal.
    pub fn push(&mut self, delta: &str) -> Vec<Line> {
        let mut rest = delta;
        if !rest.is_empty() && std::mem::take(&mut self.ends_with_cr) {
            rest = rest.strip_prefix('\n').unwrap_or(rest);
        }
        while let Some((line, end, after)) = split_line(rest) {
            self.partial.push_str(line);
            self.end_line();
            rest = after;
            if end == '\r' {
                self.ends_with_cr = rest.is_empty();
                rest = rest.strip_prefix('\n').unwrap_or(rest);
            }
        }
        self.partial.push_str(rest);
        self.split_long_partial();
        self.blocks.take_lines()
    }

    /// Returns the last lines of the unfinished text, laid out as if the text ended here. No line is wider than the
    /// terminal.
    pub fn unfinished_tail(&self, max_lines: usize) -> Vec<Line> {
        let mut blocks = self.blocks.preview_copy();
        let partial = blocks::preview_tail(&self.partial);
        if !partial.is_empty() {
            blocks.push_preview_line(
                partial,
                self.is_continuation || partial.len() < self.partial.len(),
            );
        }
        blocks.close_block();
        let mut lines = Vec::new();
        for line in blocks.take_lines() {
            split_wide_line(line.without_tabs(), blocks.width(), &mut lines);
        }
        lines.split_off(lines.len().saturating_sub(max_lines))
    }

    /// Ends the text and returns the remaining lines. A new text can start afterwards.
    pub fn finish(&mut self) -> Vec<Line> {
        if !self.partial.is_empty() {
            self.end_line();
        }
        self.blocks.close_block();
        let lines = self.blocks.take_lines();
        *self = Self {
            partial: String::new(),
            ends_with_cr: false,
            is_continuation: false,
            blocks: self.blocks.empty_copy(),
        };
        lines
    }

    /// Passes the partial line to the blocks as a complete line.
    fn end_line(&mut self) {
        self.split_long_partial();
        let line = std::mem::take(&mut self.partial);
        let is_continuation = std::mem::take(&mut self.is_continuation);
        self.blocks.push_line(&line, is_continuation);
        // Reuse the allocation.
        self.partial = line;
        self.partial.clear();
    }

    /// Splits a partial line that is longer than a block may be. Code is not split, because it is not laid out.
    fn split_long_partial(&mut self) {
        while self.partial.len() > MAX_BLOCK_BYTES && !self.blocks.is_in_code() {
            let rest = self.partial.split_off(blocks::split_offset(&self.partial));
            self.blocks.push_line(&self.partial, self.is_continuation);
            self.partial = rest;
            self.is_continuation = true;
        }
    }
}

/// Splits a text at its first line ending: the line, the first character of the ending, and the text after it.
fn split_line(text: &str) -> Option<(&str, char, &str)> {
    let end = text.find(['\n', '\r'])?;
    let (line, rest) = text.split_at(end);
    let mut rest = rest.chars();
    let end = rest.next()?;
    Some((line, end, rest.as_str()))
}

/// Splits a line into parts of at most `width` columns and appends them to `lines`.
fn split_wide_line(line: Line, width: usize, lines: &mut Vec<Line>) {
    if line.columns() <= width {
        lines.push(line);
        return;
    }
    let mut current = Line::default();
    for Span { text, style } in &line.spans {
        let mut rest = text.as_str();
        loop {
            let (fitting, remaining) = split_at_width(rest, width - current.columns());
            current.push(fitting, *style);
            rest = remaining;
            if rest.is_empty() {
                break;
            }
            lines.push(std::mem::take(&mut current));
        }
    }
    lines.push(current);
}
