//! Markdown that is laid out while it streams.
//!
//! [`Markdown::push`] returns lines as soon as nothing can change them: a block when it is over, code line by line, a
//! list item by item. Lines depend on the text (and the width) alone, never on how the stream was cut. What is not
//! finished is bounded: a block longer than [`MAX_BLOCK_BYTES`] goes on as another one, so that each delta costs the same.
//!
//! The price: a definition of a link's target (`[name]: address`) is known only in its own block. It is shown as it is,
//! and so is a link that refers to one elsewhere. Footnotes and HTML are shown as they are, too.
//!
//! * `start`: what one line may begin.
//! * `blocks`: lines into blocks.
//! * `layout`, `flow`, `table`: a block into lines of the screen.

mod blocks;
mod inline;
mod layout;
mod start;
mod table;
#[cfg(test)]
mod tests;

use crate::{Line, Span, fit};

use blocks::Blocks;

/// How many bytes of source are laid out at once.
pub const MAX_BLOCK_BYTES: usize = 16 * 1024;

/// How Markdown looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkdownStyle {
    /// By styles: the marks of the source are gone.
    Styled,
    /// Without styles: the marks of emphasis, code and headings stay in the text.
    Plain,
}

impl MarkdownStyle {
    fn bullet(self) -> &'static str {
        match self {
            Self::Styled => "• ",
            Self::Plain => "- ",
        }
    }

    fn quote(self) -> &'static str {
        match self {
            Self::Styled => "│ ",
            Self::Plain => "> ",
        }
    }
}

/// An answer that grows.
///
/// ```
/// use bub_terminal::markdown::{MarkdownStyle, Markdown};
///
/// let mut answer = Markdown::new(80, MarkdownStyle::Styled);
/// assert!(answer.push("Hel").is_empty());
/// assert_eq!(answer.preview(10)[0].text(), "Hel");
/// assert_eq!(answer.push("lo\n\n- one")[0].text(), "Hello");
/// assert_eq!(answer.finish()[1].text(), "• one");
/// ```
#[derive(Debug, Clone)]
pub struct Markdown {
    /// The line that has no end yet.
    partial: String,
    /// The last character was a carriage return: a line feed belongs to it.
    returned: bool,
    /// The line without an end is the rest of a longer one.
    continued: bool,
    blocks: Blocks,
}

impl Markdown {
    /// For a terminal of so many columns.
    pub fn new(width: usize, look: MarkdownStyle) -> Self {
        Self {
            partial: String::new(),
            returned: false,
            continued: false,
            blocks: Blocks::new(width, look),
        }
    }

    /// From now on so wide; finished lines stay as they are.
    pub fn set_width(&mut self, width: usize) {
        self.blocks.set_width(width);
    }

    /// Takes what has arrived; returns the lines that are finished by it. Only code may be wider than the terminal.
    pub fn push(&mut self, delta: &str) -> Vec<Line> {
        let mut rest = delta;
        if !rest.is_empty() && std::mem::take(&mut self.returned) {
            rest = rest.strip_prefix('\n').unwrap_or(rest);
        }
        while let Some((line, end, after)) = split_line(rest) {
            self.partial.push_str(line);
            self.end_line();
            rest = after;
            if end == '\r' {
                self.returned = rest.is_empty();
                rest = rest.strip_prefix('\n').unwrap_or(rest);
            }
        }
        self.partial.push_str(rest);
        self.cut_partial();
        self.blocks.take_lines()
    }

    /// The last lines of what is not finished, as they would be if nothing followed. None is wider than the terminal.
    pub fn preview(&self, max_lines: usize) -> Vec<Line> {
        let mut blocks = self.blocks.tail();
        let partial = blocks::recent(&self.partial);
        if !partial.is_empty() {
            blocks.preview_line(
                partial,
                self.continued || partial.len() < self.partial.len(),
            );
        }
        blocks.close();
        let mut lines = Vec::new();
        for line in blocks.take_lines() {
            split_wide(line.without_tabs(), blocks.width(), &mut lines);
        }
        lines.split_off(lines.len().saturating_sub(max_lines))
    }

    /// The end: the lines that were not finished. Afterwards a new answer can begin.
    pub fn finish(&mut self) -> Vec<Line> {
        if !self.partial.is_empty() {
            self.end_line();
        }
        self.blocks.close();
        let lines = self.blocks.take_lines();
        *self = Self {
            partial: String::new(),
            returned: false,
            continued: false,
            blocks: self.blocks.fresh(),
        };
        lines
    }

    fn end_line(&mut self) {
        self.cut_partial();
        let line = std::mem::take(&mut self.partial);
        let continued = std::mem::take(&mut self.continued);
        self.blocks.line(&line, continued);
        // The buffer is used again.
        self.partial = line;
        self.partial.clear();
    }

    /// A line without an end does not grow for ever, except in code, which is not laid out.
    fn cut_partial(&mut self) {
        while self.partial.len() > MAX_BLOCK_BYTES && !self.blocks.is_code() {
            let rest = self.partial.split_off(blocks::cut(&self.partial));
            self.blocks.line(&self.partial, self.continued);
            self.partial = rest;
            self.continued = true;
        }
    }
}

fn split_line(text: &str) -> Option<(&str, char, &str)> {
    let end = text.find(['\n', '\r'])?;
    let (line, rest) = text.split_at(end);
    let mut rest = rest.chars();
    let end = rest.next()?;
    Some((line, end, rest.as_str()))
}

/// Lines that are too wide go on below.
fn split_wide(line: Line, width: usize, lines: &mut Vec<Line>) {
    if line.columns() <= width {
        lines.push(line);
        return;
    }
    let mut current = Line::default();
    for Span { text, style } in &line.spans {
        let mut rest = text.as_str();
        loop {
            let (here, later) = fit(rest, width - current.columns());
            current.push(here, *style);
            rest = later;
            if rest.is_empty() {
                break;
            }
            lines.push(std::mem::take(&mut current));
        }
    }
    lines.push(current);
}
