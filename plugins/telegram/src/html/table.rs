//! Draws tables as monospaced text.

use pulldown_cmark::Alignment;
use unicode_width::UnicodeWidthStr as _;

/// Maximum width to which columns are padded, so that one long cell does not widen every row.
const MAX_COLUMN_PADDING: usize = 32;

/// A table that is being parsed.
pub(super) struct TextTable {
    alignments: Vec<Alignment>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    pub(super) fn new(alignments: Vec<Alignment>) -> Self {
        Self {
            alignments,
            rows: Vec::new(),
        }
    }

    pub(super) fn begin_row(&mut self) {
        self.rows.push(Vec::new());
    }

    pub(super) fn begin_cell(&mut self) {
        self.rows
            .iter_mut()
            .last()
            .into_iter()
            .for_each(|row| row.push(String::new()));
    }

    /// Appends to the last cell.
    pub(super) fn push_text(&mut self, text: &str) {
        if let Some(cell) = self.rows.last_mut().and_then(|row| row.last_mut()) {
            cell.extend(text.chars().map(|character| {
                if character.is_control() {
                    ' '
                } else {
                    character
                }
            }));
        }
    }

    fn last_cell(&self) -> &str {
        self.rows
            .last()
            .and_then(|row| row.last())
            .map_or("", String::as_str)
    }

    /// Returns the length of the last cell in bytes.
    pub(super) fn last_cell_length(&self) -> usize {
        self.last_cell().len()
    }

    /// Returns the text of the last cell from byte `start` on.
    pub(super) fn last_cell_from(&self, start: usize) -> Option<&str> {
        self.last_cell().get(start..)
    }

    /// Returns the lines of the table: the header, a rule, and the rows.
    pub(super) fn to_text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let mut widths = vec![0; columns];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.width().min(MAX_COLUMN_PADDING).max(*width);
            }
        }
        let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
        let mut lines = String::new();
        for (index, row) in self.rows.iter().enumerate() {
            // Omit empty cells at the end of a row.
            let filled = row
                .iter()
                .rposition(|cell| !cell.is_empty())
                .map_or(0, |last| last + 1);
            let cells = row.iter().zip(&widths).enumerate().take(filled);
            let cells = cells.map(|(column, (cell, width))| self.pad_cell(column, cell, *width));
            lines.push_str(cells.collect::<Vec<_>>().join(" | ").trim_end());
            lines.push('\n');
            if index == 0 {
                lines.push_str(&rule.join("-+-"));
                lines.push('\n');
            }
        }
        lines
    }

    fn pad_cell(&self, column: usize, cell: &str, width: usize) -> String {
        let missing = width.saturating_sub(cell.width());
        let left = match self.alignments.get(column) {
            Some(Alignment::Right) => missing,
            Some(Alignment::Center) => missing / 2,
            _ => 0,
        };
        format!("{}{cell}{}", " ".repeat(left), " ".repeat(missing - left))
    }
}
