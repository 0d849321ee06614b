//! Styled text, and how it becomes bytes for a terminal.

use std::{
    fmt::Write as _,
    ops::{BitOr, BitOrAssign},
};

use crate::{columns, sanitize::without_tabs};

/// How far apart the tab stops of a terminal are.
const TAB_WIDTH: usize = 8;

/// How a piece of text looks: a set, combined with `|`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Style(u16);

impl Style {
    /// As the terminal writes by itself.
    pub const NONE: Self = Self(0);
    /// Strong text, headings.
    pub const BOLD: Self = Self(1);
    /// What is less important.
    pub const DIM: Self = Self(1 << 1);
    /// Emphasis.
    pub const ITALIC: Self = Self(1 << 2);
    /// Underlined.
    pub const UNDERLINE: Self = Self(1 << 3);
    /// Struck through.
    pub const STRIKE: Self = Self(1 << 4);
    /// Swapped colours.
    pub const REVERSE: Self = Self(1 << 5);
    /// Errors.
    pub const RED: Self = Self(1 << 6);
    /// Success.
    pub const GREEN: Self = Self(1 << 7);
    /// Warnings.
    pub const YELLOW: Self = Self(1 << 8);
    /// The assistant, links.
    pub const BLUE: Self = Self(1 << 9);
    /// Code, commands.
    pub const CYAN: Self = Self(1 << 10);

    /// SGR numbers; from `FIRST_COLOR` on they are colours.
    const SGR: [(Self, &'static str); 11] = [
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
    ];
    const FIRST_COLOR: usize = 6;

    /// Whether all of `other` is in it.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn start(self, color_mode: ColorMode, out: &mut String) -> bool {
        let known = match color_mode {
            ColorMode::None => 0,
            ColorMode::Attributes => Self::FIRST_COLOR,
            ColorMode::Colors => Self::SGR.len(),
        };
        let mut separator = "\x1b[";
        for (_, number) in Self::SGR
            .iter()
            .take(known)
            .filter(|(style, _)| self.has(*style))
        {
            let _ = write!(out, "{separator}{number}");
            separator = ";";
        }
        let styled = separator == ";";
        if styled {
            out.push('m');
        }
        styled
    }
}

impl BitOr for Style {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Style {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// What may be written beside the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColorMode {
    /// Nothing: no escape sequence at all.
    None,
    /// Bold, underlined and so on, but no colours.
    Attributes,
    /// Everything.
    Colors,
}

/// A piece of text in one style.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The text: harmless, without line ends; with tabs only where it begins the line.
    pub text: String,
    /// How it looks.
    pub style: Style,
}

/// One line of the screen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Line {
    /// Its pieces, from left to right.
    pub spans: Vec<Span>,
}

impl Line {
    /// A line of one piece.
    pub fn new(text: impl Into<String>, style: Style) -> Self {
        let mut line = Self::default();
        line.push(&text.into(), style);
        line
    }

    /// Appends a piece; neighbours of the same style become one.
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

    /// Takes the spaces at its end away.
    pub fn trim_end(&mut self) {
        while let Some(last) = self.spans.last_mut() {
            last.text.truncate(last.text.trim_end_matches(' ').len());
            if !last.text.is_empty() {
                break;
            }
            self.spans.pop();
        }
    }

    /// The text alone.
    pub fn text(&self) -> String {
        self.spans.iter().map(|span| span.text.as_str()).collect()
    }

    /// How many columns it takes.
    pub fn columns(&self) -> usize {
        self.spans.iter().map(|span| columns(&span.text)).sum()
    }

    /// The same with spaces that reach as far as its tabs do.
    #[must_use]
    pub fn without_tabs(&self) -> Self {
        let mut line = Self::default();
        for span in &self.spans {
            line.push(&without_tabs(&span.text, TAB_WIDTH), span.style);
        }
        line
    }

    /// Writes it without a line end; styles do not leak out of it.
    pub fn paint(&self, color_mode: ColorMode, out: &mut String) {
        for span in &self.spans {
            let styled = span.style.start(color_mode, out);
            out.push_str(&span.text);
            if styled {
                out.push_str("\x1b[0m");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn styles_appear_only_in_ink() {
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
