//! The rows that commands such as `bub policy list` print. Names and texts from files, plugins and other users cannot
//! add a row or control the terminal, also if the output goes through a pipe to another program.

use std::{borrow::Cow, iter::repeat_n, process::ExitCode};

use bub_kernel::Result;
use bub_settings::Redactor;
use bub_terminal::{columns, sanitize::sanitize};

use super::output;

/// The rows of a listing.
#[derive(Default)]
pub(super) struct Listing(String);

impl Listing {
    /// Adds a row. It stays one line, whatever it contains.
    pub(super) fn row(&mut self, row: impl AsRef<str>) {
        self.0.push_str(&sanitize_row(row.as_ref()));
        self.0.push('\n');
    }

    /// Adds an empty line.
    pub(super) fn blank(&mut self) {
        self.0.push('\n');
    }

    /// Adds aligned rows.
    pub(super) fn columns(&mut self, rows: &[impl AsRef<[String]>]) {
        self.0.push_str(&format_columns(rows));
    }

    /// Adds the rows of another listing.
    pub(super) fn append(&mut self, other: &Self) {
        self.0.push_str(&other.0);
    }

    /// Adds `row` if there are no rows.
    pub(super) fn or_row(mut self, row: &str) -> Self {
        if self.0.is_empty() {
            self.row(row);
        }
        self
    }

    /// Prints the rows to stdout.
    pub(super) fn print(&self) -> Result<ExitCode> {
        output::print(&self.0)
    }

    /// Prints the rows to stderr.
    pub(super) fn print_stderr(&self) {
        output::print_stderr(&self.0);
    }

    /// Prints the rows to stdout, without secrets.
    pub(super) fn print_redacted(&self, redactor: &Redactor) -> Result<ExitCode> {
        output::print(&redactor.redact(&self.0))
    }
}

/// Aligns rows in columns. The width of the last column is not limited.
pub(super) fn format_columns(rows: &[impl AsRef<[String]>]) -> String {
    let rows: Vec<Vec<_>> = rows
        .iter()
        .map(|row| row.as_ref().iter().map(|cell| sanitize_row(cell)).collect())
        .collect();
    let mut widths = Vec::new();
    for row in &rows {
        widths.resize(row.len().max(widths.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = columns(cell).max(*width);
        }
    }
    let format_row = |row: &Vec<Cow<'_, str>>| {
        let mut text = String::new();
        for (width, cell) in widths.iter().zip(row) {
            text.push_str(cell);
            text.extend(repeat_n(' ', width - columns(cell) + 2));
        }
        text.trim_end().to_owned() + "\n"
    };
    rows.iter().map(format_row).collect()
}

/// Makes a text visible in one line. Spaces stay, because they align columns.
fn sanitize_row(text: &str) -> Cow<'_, str> {
    if text.contains(['\n', '\t']) {
        Cow::Owned(sanitize(&text.replace("\r\n", " ").replace(['\n', '\t'], " ")).into_owned())
    } else {
        sanitize(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_cells() {
        let rows = [["你好", "x"], ["a", ""]].map(|row| row.map(str::to_owned));
        assert_eq!(format_columns(&rows), "你好  x\na\n");
    }

    #[test]
    fn a_row_is_one_visible_line() {
        let mut listing = Listing::default();
        listing.row("a  b\r\n\x1b[2J\tc\rd\u{202e}");
        listing.columns(&[["x\ny".to_owned(), "\x07".to_owned()]]);
        assert_eq!(listing.0, "a  b ␛[2J c␍d\\u{202e}\nx y  ␇\n");
    }
}
