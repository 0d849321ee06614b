//! Text that is shown verbatim: command output, reasoning, errors.

use unicode_segmentation::UnicodeSegmentation as _;

use crate::{Line, Style, columns, sanitize::sanitize};

/// A text that arrives in pieces. It keeps the last line until the line is complete.
#[derive(Debug, Default)]
pub(super) struct VerbatimText {
    partial: String,
    style: Style,
}

impl VerbatimText {
    pub(super) fn new(style: Style) -> Self {
        Self {
            partial: String::new(),
            style,
        }
    }

    /// Adds text and returns the lines that are complete.
    pub(super) fn push(&mut self, text: &str) -> Vec<Line> {
        self.partial.push_str(text);
        let Some(end) = self.partial.rfind('\n') else {
            return Vec::new();
        };
        let rest = self.partial.split_off(end + 1);
        let complete = std::mem::replace(&mut self.partial, rest);
        sanitized_lines(complete.strip_suffix('\n').unwrap_or(&complete), self.style)
    }

    /// Returns the end of the incomplete line, as much as fits into one row.
    pub(super) fn unfinished_tail(&self, width: usize) -> Option<Line> {
        // Skip text that certainly does not fit into the row.
        let start = self.partial.len().saturating_sub(width * 16);
        let tail = (start..).find_map(|at| self.partial.get(at..))?;
        let last = sanitized_lines(tail, self.style).pop()?;
        let text = last.without_tabs().text();
        let mut room = width;
        let clusters = text.graphemes(true).rev().map_while(|cluster| {
            room = room.checked_sub(columns(cluster))?;
            Some(cluster.len())
        });
        let visible = text.get(text.len() - clusters.sum::<usize>()..)?;
        (!text.is_empty()).then(|| Line::new(visible, self.style))
    }

    /// Ends the text and returns its last line, if it is incomplete.
    pub(super) fn finish(&mut self) -> Vec<Line> {
        match std::mem::take(&mut self.partial) {
            rest if rest.is_empty() => Vec::new(),
            rest => sanitized_lines(&rest, self.style),
        }
    }
}

/// Splits a text into sanitized lines.
pub(crate) fn sanitized_lines(text: &str, style: Style) -> Vec<Line> {
    let text = sanitize(text);
    let lines = text.split('\n').map(|line| Line::new(line, style));
    lines.collect()
}

/// Wraps a line of one style between words at `width` columns. If the line is indented, its continuation rows are indented more.
pub(crate) fn wrap_line(line: &Line, width: usize) -> Vec<Line> {
    let (text, style) = (
        line.text(),
        line.spans.first().map_or(Style::NONE, |span| span.style),
    );
    let indent = text.len() - text.trim_start().len();
    let hanging = match indent {
        0 => String::new(),
        indent => " ".repeat((indent + 4).min(width / 2)),
    };
    let (mut rows, mut row) = (Vec::new(), String::new());
    for word in text.split_inclusive(' ') {
        if columns(&row) + columns(word.trim_end()) > width && !row.trim().is_empty() {
            rows.push(Line::new(row.trim_end(), style));
            row.clone_from(&hanging);
        }
        row.push_str(word);
    }
    rows.push(Line::new(row.trim_end(), style));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    // W-63: line breaks of command output are kept.
    #[test]
    fn lines_stay_as_they_are_however_they_arrive() {
        let text = "a\tb\n\n  * no list\n\x1b[31mred\nend";
        let rendered = |pieces: Vec<&str>| {
            let mut verbatim = VerbatimText::new(Style::NONE);
            let mut out: Vec<Line> = pieces
                .into_iter()
                .flat_map(|piece| verbatim.push(piece))
                .collect();
            out.extend(verbatim.finish());
            out.iter().map(Line::text).collect::<Vec<_>>()
        };
        let complete = rendered(vec![text]);
        assert_eq!(complete, ["a\tb", "", "  * no list", "␛[31mred", "end"]);
        for at in 0..text.len() {
            assert_eq!(rendered(vec![&text[..at], &text[at..]]), complete);
        }
    }

    #[test]
    fn help_is_broken_between_words() {
        let rows = |text: &str| -> Vec<String> {
            wrap_line(&Line::new(text, Style::NONE), 16)
                .iter()
                .map(Line::text)
                .collect()
        };
        assert_eq!(
            rows("  ,name  Shows what there is"),
            ["  ,name  Shows", "      what there", "      is"]
        );
        assert_eq!(rows("Commands: one or two"), ["Commands: one or", "two"]);
        assert_eq!(rows(""), [""]);
    }

    #[test]
    fn the_preview_is_the_end_of_the_line() {
        let mut verbatim = VerbatimText::new(Style::NONE);
        verbatim.push("one\nabcdef你好");
        assert_eq!(verbatim.unfinished_tail(6).unwrap().text(), "ef你好");
        assert_eq!(verbatim.unfinished_tail(5).unwrap().text(), "f你好");
        assert_eq!(verbatim.unfinished_tail(3).unwrap().text(), "好");
    }
}
