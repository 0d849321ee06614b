//! Styled text and its output as escape sequences.

use std::fmt::Write as _;

use bitflags::bitflags;

use crate::{columns, sanitize::expand_tabs, split_at_width};

/// Columns between the tab stops of a terminal.
const TAB_WIDTH: usize = 8;

bitflags! {
    /// A set of text attributes and colors, combined with `|`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Style: u16 {
        /// Bold, for strong text and headings.
        const BOLD = 1;
        /// Dim, for less important text.
        const DIM = 1 << 1;
        /// Italic, for emphasis.
        const ITALIC = 1 << 2;
        /// Underlined text.
        const UNDERLINE = 1 << 3;
        /// Struck-through text.
        const STRIKE = 1 << 4;
        /// Swapped foreground and background colors.
        const REVERSE = 1 << 5;
        /// Red, for errors.
        const RED = 1 << 6;
        /// Green, for success.
        const GREEN = 1 << 7;
        /// Yellow, for warnings.
        const YELLOW = 1 << 8;
        /// Blue, for titles of answers and for links.
        const BLUE = 1 << 9;
        /// Cyan, for code and commands.
        const CYAN = 1 << 10;
        /// Magenta, for keywords of code.
        const MAGENTA = 1 << 11;
    }
}

impl Style {
    /// No attributes.
    pub const NONE: Self = Self::empty();

    /// The number of each style in the escape sequence SGR (Select Graphic Rendition). The entries from index
    /// `FIRST_COLOR` on are colors.
    const SGR: [(Self, &'static str); 12] = [
        (Self::BOLD, "1"),
        (Self::DIM, "2"),
        (Self::ITALIC, "3"),
        (Self::UNDERLINE, "4"),
        (Self::STRIKE, "9"),
        (Self::REVERSE, "7"),
        (Self::RED, "31"),
        (Self::GREEN, "32"),
        (Self::YELLOW, "33"),
        (Self::BLUE, "34"),
        (Self::CYAN, "36"),
        (Self::MAGENTA, "35"),
    ];
    const FIRST_COLOR: usize = 6;

    /// Appends the escape sequence that starts the style. Returns `false` if the style needs no escape sequence in this
    /// color mode.
    fn write_sgr(self, color_mode: ColorMode, out: &mut String) -> bool {
        let supported_count = match color_mode {
            ColorMode::None => 0,
            ColorMode::Attributes => Self::FIRST_COLOR,
            ColorMode::Colors => Self::SGR.len(),
        };
        let mut separator = "\x1b[";
        for (_, number) in Self::SGR
            .iter()
            .take(supported_count)
            .filter(|(style, _)| self.contains(*style))
        {
            let _ = write!(out, "{separator}{number}");
            separator = ";";
        }
        let is_styled = separator == ";";
        if is_styled {
            out.push('m');
        }
        is_styled
    }
}

/// Which escape sequences may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColorMode {
    /// No escape sequences.
    None,
    /// Attributes such as bold and underline, but no colors.
    Attributes,
    /// Attributes and colors.
    Colors,
}

/// A part of a line with one style.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The text: sanitized and without line endings.
    pub text: String,
    /// The style of the text.
    pub style: Style,
}

/// One line of styled text.
///
/// ```
/// use bub_terminal::{ColorMode, Line, Style};
///
/// let mut line = Line::new("error: ", Style::RED);
/// line.push("file not found", Style::NONE);
/// let mut out = String::new();
/// line.paint(ColorMode::Colors, &mut out);
/// assert_eq!(out, "\x1b[31merror: \x1b[0mfile not found");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Line {
    /// The spans of the line, from left to right.
    pub spans: Vec<Span>,
}

impl Line {
    /// Creates a line of one span.
    pub fn new(text: impl Into<String>, style: Style) -> Self {
        let mut line = Self::default();
        line.push(&text.into(), style);
        line
    }

    /// Creates a line of the text that fits into a row of `width` columns. The last column stays free.
    pub fn fitting(text: &str, width: usize, style: Style) -> Self {
        Self::new(split_at_width(text, width.saturating_sub(1)).0, style)
    }

    /// Appends text. If it has the style of the last span, it becomes part of that span.
    pub fn push(&mut self, text: &str, style: Style) {
        match self.spans.last_mut() {
            _ if text.is_empty() => {}
            Some(last) if last.style == style => last.text.push_str(text),
            _ => self.spans.push(Span {
                text: text.to_owned(),
                style,
            }),
        }
    }

    /// Appends the spans of another line.
    pub fn append(&mut self, other: &Self) {
        for span in &other.spans {
            self.push(&span.text, span.style);
        }
    }

    /// Removes trailing spaces.
    pub fn trim_end(&mut self) {
        while let Some(last) = self.spans.last_mut() {
            last.text.truncate(last.text.trim_end_matches(' ').len());
            if !last.text.is_empty() {
                break;
            }
            self.spans.pop();
        }
    }

    /// Returns the text without styles.
    pub fn text(&self) -> String {
        self.spans.iter().map(|span| span.text.as_str()).collect()
    }

    /// Returns the display width in columns.
    pub fn columns(&self) -> usize {
        self.spans.iter().map(|span| columns(&span.text)).sum()
    }

    /// Returns the line with tabs expanded to spaces.
    #[must_use]
    pub fn without_tabs(&self) -> Self {
        let mut line = Self::default();
        let mut column = 0;
        for span in &self.spans {
            let text = expand_tabs(&span.text, column, TAB_WIDTH);
            column += columns(&text);
            line.push(&text, span.style);
        }
        line
    }

    /// Appends the line to `out` with escape sequences and without a line ending. Each styled span ends with the escape
    /// sequence that resets the style.
    pub fn paint(&self, color_mode: ColorMode, out: &mut String) {
        for span in &self.spans {
            let is_styled = span.style.write_sgr(color_mode, out);
            out.push_str(&span.text);
            if is_styled {
                out.push_str("\x1b[0m");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn styles_appear_only_in_their_color_mode() {
        let mut line = Line::new("a", Style::NONE);
        line.push("b", Style::BOLD | Style::CYAN);
        line.push("c", Style::RED);
        let painted = |color_mode| {
            let mut out = String::new();
            line.paint(color_mode, &mut out);
            out
        };
        assert_eq!(painted(ColorMode::None), "abc");
        assert_eq!(painted(ColorMode::Attributes), "a\x1b[1mb\x1b[0mc");
        assert_eq!(
            painted(ColorMode::Colors),
            "a\x1b[1;36mb\x1b[0m\x1b[31mc\x1b[0m"
        );
        assert_eq!((line.text().as_str(), line.columns()), ("abc", 3));
    }
}
