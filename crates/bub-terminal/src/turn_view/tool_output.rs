//! The output of tool calls: its end while a call runs, its first lines afterwards, and the rest on request.

use std::collections::VecDeque;

use super::truncate_line;
use crate::{Line, Style, sanitize::sanitize};

/// Maximum bytes of live output kept per call.
const MAX_LIVE_BYTES: usize = 4 * 1024;
/// Rows of live output shown per call.
const MAX_LIVE_ROWS: usize = 5;
/// Maximum number of shortened outputs that can be shown completely.
const MAX_HIDDEN_COUNT: usize = 32;

/// The end of the output of a running call.
#[derive(Debug, Default)]
pub(super) struct LiveOutput(String);

impl LiveOutput {
    pub(super) fn push(&mut self, text: &str) {
        self.0.push_str(text);
        let start = self.0.len().saturating_sub(MAX_LIVE_BYTES);
        let start = self.0.ceil_char_boundary(start);
        self.0.drain(..start);
    }

    /// Returns the last lines. A line that the program has overwritten, such as a progress bar, has its latest text.
    pub(super) fn tail(&self) -> Vec<Line> {
        let lines: Vec<&str> = self.0.trim_end().lines().collect();
        let first = lines.len().saturating_sub(MAX_LIVE_ROWS);
        let latest = |line: &&str| {
            let text = line.trim_end_matches('\r').rsplit('\r').next();
            Line::new(
                format!("    {}", sanitize(text.unwrap_or_default())),
                Style::DIM,
            )
        };
        lines.iter().skip(first).map(latest).collect()
    }
}

/// Texts that were shown only in part. The latest ones are kept.
#[derive(Debug, Default)]
pub(super) struct HiddenOutput(VecDeque<(String, Vec<Line>)>);

impl HiddenOutput {
    /// Returns the first `max_lines` of a text, cut at `width` columns. If this hides something, a note follows with
    /// the hint, and the text is kept under this title.
    pub(super) fn shorten(
        &mut self,
        title: &str,
        lines: Vec<Line>,
        (max_lines, width): (usize, usize),
        hint: &str,
    ) -> Vec<Line> {
        let hidden = match lines.len().saturating_sub(max_lines) {
            // Do not hide a single line: the note about it takes as much space.
            1 => 0,
            hidden => hidden,
        };
        let shown_lines = lines.iter().take(lines.len() - hidden);
        let is_cut = shown_lines.clone().any(|line| line.columns() > width);
        let mut shown: Vec<Line> = shown_lines.map(|line| cut_line(line, width)).collect();
        let note = match (hidden, is_cut) {
            (0, false) => return shown,
            (0, true) => "cut".to_owned(),
            _ => format!("{hidden} more lines"),
        };
        let hint = match hint {
            "" => String::new(),
            hint => format!(" ({hint})"),
        };
        shown.push(Line::new(format!("    … {note}{hint}"), Style::DIM));
        if self.0.len() == MAX_HIDDEN_COUNT {
            self.0.pop_front();
        }
        self.0.push_back((title.to_owned(), lines));
        shown
    }

    /// Returns the title and the lines of the latest text, and forgets it. The next call returns the one before it.
    pub(super) fn take_latest(&mut self) -> Option<(String, Vec<Line>)> {
        self.0.pop_back()
    }
}

/// Returns a line that fits into `width` columns. A `…` replaces what does not fit.
fn cut_line(line: &Line, width: usize) -> Line {
    if line.columns() <= width {
        return line.clone();
    }
    let mut short = truncate_line(line, width.saturating_sub(1));
    short.push("…", Style::DIM);
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(lines: &[Line]) -> Vec<String> {
        lines.iter().map(Line::text).collect()
    }

    #[test]
    fn live_output_is_the_end_with_the_latest_progress() {
        let mut live = LiveOutput::default();
        live.push("one\ntwo\nthree\nfour\nfive\nsix\n");
        live.push(" 10 %\r 20 %\r 30 %");
        assert_eq!(
            texts(&live.tail()),
            ["    three", "    four", "    five", "    six", "     30 %"]
        );
        live.push(&"é".repeat(MAX_LIVE_BYTES));
        assert!(live.0.len() <= MAX_LIVE_BYTES);
    }

    #[test]
    fn what_is_hidden_can_be_shown_once() {
        let lines = |count: usize| -> Vec<Line> {
            let numbers = (1..=count).map(|number| Line::new(number.to_string(), Style::NONE));
            numbers.collect()
        };
        let mut hidden = HiddenOutput::default();
        assert_eq!(hidden.shorten("a", lines(3), (2, 9), "").len(), 3);
        assert!(hidden.take_latest().is_none());
        let shown = hidden.shorten("b", lines(5), (2, 9), "key");
        assert_eq!(texts(&shown), ["1", "2", "    … 3 more lines (key)"]);
        let (title, all) = hidden.take_latest().unwrap();
        assert_eq!((title.as_str(), all.len()), ("b", 5));
        assert!(hidden.take_latest().is_none());
        let wide = vec![Line::new("123456789", Style::NONE)];
        assert_eq!(
            texts(&hidden.shorten("c", wide, (2, 5), "key")),
            ["1234…", "    … cut (key)"]
        );
        assert_eq!(texts(&hidden.take_latest().unwrap().1), ["123456789"]);
    }
}
