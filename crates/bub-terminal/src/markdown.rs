//! Markdown that is laid out while it streams.

use crate::Line;

/// How Markdown looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// By styles: the marks of the source are gone.
    Styled,
    /// Without styles: the marks of emphasis, code and headings stay in the text.
    Plain,
}

/// An answer that grows. Lines come out as soon as nothing can change them.
#[derive(Debug, Clone)]
pub struct Markdown {
    width: usize,
    look: Look,
}

impl Markdown {
    /// For a terminal of so many columns.
    pub fn new(width: usize, look: Look) -> Self {
        Self { width, look }
    }

    /// Takes what has arrived; returns the lines that are finished by it.
    pub fn push(&mut self, _delta: &str) -> Vec<Line> {
        let _ = (self.width, self.look);
        Vec::new()
    }

    /// From now on so wide; finished lines stay as they are.
    pub fn set_width(&mut self, width: usize) {
        self.width = width;
    }

    /// The last lines of what is not finished yet, as they would be now. None is wider than the terminal.
    pub fn preview(&self, _max_lines: usize) -> Vec<Line> {
        Vec::new()
    }

    /// The end: the lines that were still open. Afterwards a new answer can begin.
    pub fn finish(&mut self) -> Vec<Line> {
        Vec::new()
    }
}
