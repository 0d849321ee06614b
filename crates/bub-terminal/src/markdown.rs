//! Layout of Markdown while it streams.
//!
//! [`Markdown::push`] returns lines as soon as they are final: blocks when they end, fenced code and HTML line
//! by line, lists item by item. Lines depend only on the text and the width, never on how the stream was split. The
//! unfinished text is limited: a block longer than [`MAX_BLOCK_BYTES`] continues as another block. Adding text therefore
//! does not get slower as the text grows.
//!
//! Limitation: a link definition (`[name]: address`) applies only in its own block. It is shown verbatim, and so is a
//! link that refers to a definition in another block. Footnotes and HTML are also shown verbatim.
//!
//! * `blocks`: groups lines into blocks.
//! * `layout`, `inline`, `table`: lay out a block as lines of the screen.

mod blocks;
mod inline;
mod layout;
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
    /// Uses text styles such as bold, and removes the marks of the source, such as `**`.
    Styled,
    /// Keeps the marks of the source, such as `**`, for emphasis, code and headings, so that the text is clear without
    /// styles.
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
    blocks: Blocks,
}

impl Markdown {
    /// Creates an empty text for a terminal with `width` columns.
    pub fn new(width: usize, style: MarkdownStyle) -> Self {
        Self {
            partial: String::new(),
            ends_with_cr: false,
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
        self.ends_with_cr |= rest.ends_with('\r');
        while let Some(end) = rest.find(['\n', '\r']) {
            let (line, after) = rest.split_at(end);
            self.partial.push_str(line);
            self.end_line();
            rest = after
                .strip_prefix("\r\n")
                .or(after.get(1..))
                .unwrap_or_default();
        }
        self.partial.push_str(rest);
        self.split_long_partial();
        self.blocks.take_lines()
    }

    /// Returns the last lines of the unfinished text, at most `max_lines`, laid out as if the text ended here. No line
    /// is wider than the terminal.
    pub fn unfinished_tail(&self, max_lines: usize) -> Vec<Line> {
        let mut blocks = self.blocks.preview_copy();
        let partial = blocks::preview_tail(&self.partial);
        if !partial.is_empty() {
            blocks.push_preview_line(partial);
        }
        blocks.close_block();
        let mut lines = Vec::new();
        for line in blocks.take_lines() {
            split_wide_line(line.without_tabs(), blocks.width, &mut lines);
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
        self.ends_with_cr = false;
        self.blocks = self.blocks.empty_copy();
        lines
    }

    /// Ends the partial line and passes it to `blocks`.
    fn end_line(&mut self) {
        self.split_long_partial();
        self.blocks.push_line(&self.partial);
        self.partial.clear();
    }

    /// Splits the partial line if it is longer than [`MAX_BLOCK_BYTES`]. Code is not split, because its lines are not
    /// wrapped.
    fn split_long_partial(&mut self) {
        while self.partial.len() > MAX_BLOCK_BYTES && !self.blocks.is_in_code() {
            let rest = self.partial.split_off(blocks::split_offset(&self.partial));
            self.blocks.push_line(&self.partial);
            self.partial = rest;
        }
    }
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
