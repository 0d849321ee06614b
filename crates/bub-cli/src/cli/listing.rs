//! The rows and tables that commands such as `bub policy list` print. Names and texts from files, plugins and other users
//! cannot add a row or control the terminal, also if the output goes through a pipe to another program.
//!
//! On a terminal, rows are wrapped between words and tables fit into its width. In a pipe, each row is one line.

use std::{borrow::Cow, iter::repeat_n, process::ExitCode};

use bub::logging::should_use_color;
use bub_kernel::Result;
use bub_settings::{Redactor, Settings};
use bub_terminal::{
    ColorMode, Line, Span, Style, columns, sanitize::sanitize, split_at_width, tty,
};

use super::{output, terminal_mode::TerminalMode};

/// Spaces between two columns of a table.
const COLUMN_GAP: usize = 2;
/// A column that is narrower than this and does not fit is unreadable. The table is then printed as a list.
const MIN_WRAPPED_COLUMNS: usize = 16;
/// Maximum width to which the columns of a table are aligned in a pipe.
const MAX_PIPE_COLUMNS: usize = 40;
/// Additional indentation of the lines that continue a row.
const CONTINUATION_INDENT: usize = 2;

/// The rows of a listing.
#[derive(Default)]
pub(super) struct Listing(Vec<ListingPart>);

enum ListingPart {
    Row(Line),
    Table(Table),
}

/// Rows with aligned columns.
#[derive(Default)]
pub(super) struct Table {
    /// Names of the columns; empty if the table has no heading.
    head: Vec<Cow<'static, str>>,
    rows: Vec<Vec<Span>>,
    /// First of the columns with numbers, which are aligned to the right, and their count.
    numbers: (usize, usize),
    /// Whether the first column is never wrapped, because users copy what is in it.
    keeps_first: bool,
}

/// What the output can show.
#[derive(Clone, Copy)]
pub(super) struct ListingLayout {
    /// Width of the terminal. `None` in a pipe.
    pub(super) width: Option<usize>,
    color_mode: ColorMode,
}

/// Creates a cell of a table.
pub(super) fn cell(text: impl Into<String>, style: Style) -> Span {
    Span {
        text: text.into(),
        style,
    }
}

impl Listing {
    /// Adds a row. In a pipe, it stays one line, whatever it contains.
    pub(super) fn row(&mut self, row: impl AsRef<str>) {
        self.styled_row([cell(row.as_ref(), Style::NONE)]);
    }

    /// Adds a row of several parts.
    pub(super) fn styled_row(&mut self, parts: impl IntoIterator<Item = Span>) {
        let spans = parts.into_iter().collect();
        self.0.push(ListingPart::Row(Line { spans }));
    }

    /// Adds an empty line.
    pub(super) fn blank(&mut self) {
        self.row("");
    }

    /// Adds a table, unless it has no rows.
    pub(super) fn table(&mut self, table: Table) {
        if !table.is_empty() {
            self.0.push(ListingPart::Table(table));
        }
    }

    /// Adds the rows of another listing.
    pub(super) fn append(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Adds `row` if there are no rows.
    pub(super) fn or_row(mut self, row: &str) -> Self {
        if self.0.is_empty() {
            self.row(row);
        }
        self
    }

    /// Prints the rows to stdout, without secrets.
    pub(super) fn print(&self, settings: &Settings) -> Result<ExitCode> {
        let layout = ListingLayout::for_stdout(settings);
        output::print(&self.format(layout, settings.redactor()))
    }

    /// Prints the rows to stderr.
    pub(super) fn print_stderr(&self) {
        output::print_stderr(&self.format(ListingLayout::PIPE, &Redactor::new()));
    }

    fn format(&self, layout: ListingLayout, redactor: &Redactor) -> String {
        let mut text = String::new();
        for part in &self.0 {
            let lines = match part {
                ListingPart::Row(line) => wrap_row(&clean_line(&line.spans, redactor), layout),
                ListingPart::Table(table) => table.lay_out(layout, redactor),
            };
            for mut line in lines {
                line.trim_end();
                line.paint(layout.color_mode, &mut text);
                text.push('\n');
            }
        }
        text
    }
}

impl From<Table> for Listing {
    fn from(table: Table) -> Self {
        let mut listing = Self::default();
        listing.table(table);
        listing
    }
}

impl ListingLayout {
    const PIPE: Self = Self {
        width: None,
        color_mode: ColorMode::None,
    };

    pub(super) fn for_stdout(settings: &Settings) -> Self {
        let mode = TerminalMode::of_stdout(settings.environment());
        if mode == TerminalMode::Pipe {
            return Self::PIPE;
        }
        let has_colors = mode == TerminalMode::Screen && should_use_color(settings);
        Self {
            width: Some(tty::size().columns),
            color_mode: if has_colors {
                ColorMode::Colors
            } else {
                ColorMode::None
            },
        }
    }
}

impl Table {
    /// Creates a table with a heading.
    pub(super) fn with_head(head: impl IntoIterator<Item = impl Into<Cow<'static, str>>>) -> Self {
        Self {
            head: head.into_iter().map(Into::into).collect(),
            ..Self::default()
        }
    }

    /// Aligns `count` columns from `first` on to the right, because they have numbers.
    pub(super) fn numbers(mut self, first: usize, count: usize) -> Self {
        self.numbers = (first, count);
        self
    }

    /// Never wraps the first column, because users copy what is in it.
    pub(super) fn keep_first(mut self) -> Self {
        self.keeps_first = true;
        self
    }

    /// Adds a row.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = Span>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Returns whether the table has no rows.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn lay_out(&self, layout: ListingLayout, redactor: &Redactor) -> Vec<Line> {
        let clean_row = |row: &Vec<Span>| clean_line(row, redactor).spans;
        let mut rows: Vec<_> = self.rows.iter().map(clean_row).collect();
        let head = self.head.iter();
        let head: Vec<_> = head.map(|name| cell(name.clone(), Style::BOLD)).collect();
        if !head.is_empty() {
            rows.insert(0, head);
        }
        let mut natural = Vec::new();
        for row in &rows {
            natural.resize(row.len().max(natural.len()), 0);
            for (width, cell) in natural.iter_mut().zip(row) {
                *width = columns(&cell.text).max(*width);
            }
        }
        let fitting = match natural.split_first() {
            Some((first, rest)) if self.keeps_first => {
                let width = layout
                    .width
                    .map(|width| width.checked_sub(first + COLUMN_GAP));
                match width {
                    // The terminal is not wider than the first column.
                    Some(None) => None,
                    width => fit_widths(rest, width.flatten()).map(|mut widths| {
                        widths.insert(0, *first);
                        widths
                    }),
                }
            }
            _ => fit_widths(&natural, layout.width),
        };
        let Some(widths) = fitting else {
            return list_rows(&rows, !self.head.is_empty(), self.keeps_first, layout);
        };
        let mut lines = Vec::new();
        for row in &rows {
            let cells = row.iter().zip(&widths);
            // In a pipe, a row is one line.
            let is_pipe = layout.width.is_none();
            let wrapped =
                |(cell, width): (_, &usize)| wrap(cell, if is_pipe { usize::MAX } else { *width });
            let cells: Vec<_> = cells.map(wrapped).collect();
            let height = cells.iter().map(Vec::len).max().unwrap_or_default();
            lines.extend((0..height).map(|at| self.join_cells(&cells, &widths, at)));
        }
        lines
    }

    /// Joins one line of each cell of a row.
    fn join_cells(&self, cells: &[Vec<Line>], widths: &[usize], at: usize) -> Line {
        let numbers = self.numbers.0..self.numbers.0 + self.numbers.1;
        let (mut line, mut gap) = (Line::default(), 0);
        for (index, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let part = cell.get(at).cloned().unwrap_or_default();
            let free = width.saturating_sub(part.columns());
            let before = if numbers.contains(&index) { free } else { 0 };
            line.push(&spaces(gap + before), Style::NONE);
            line.append(&part);
            gap = free - before + COLUMN_GAP;
        }
        line
    }
}

/// Aligns rows in columns, for a text that is not printed as a [`Listing`].
pub(super) fn format_columns(rows: &[impl AsRef<[String]>]) -> String {
    let mut table = Table::default();
    for row in rows {
        table.row(row.as_ref().iter().map(|text| cell(text, Style::NONE)));
    }
    let listing = Listing(vec![ListingPart::Table(table)]);
    listing.format(ListingLayout::PIPE, &Redactor::new())
}

/// Returns the widths of the columns of a table that fits into `width`, or `None` if it does not fit.
fn fit_widths(natural: &[usize], width: Option<usize>) -> Option<Vec<usize>> {
    let gaps = natural.len().saturating_sub(1) * COLUMN_GAP;
    let total: usize = natural.iter().sum();
    let Some(available) = width.map(|width| width.saturating_sub(gaps)) else {
        // A long value must not move the next column of all rows.
        let widths = natural.iter().map(|width| MAX_PIPE_COLUMNS.min(*width));
        return Some(widths.collect());
    };
    if total <= available {
        return Some(natural.to_vec());
    }
    // The wide columns share what the narrow ones leave.
    let mut sorted = natural.to_vec();
    sorted.sort_unstable();
    let (mut left, mut share) = (available, 0);
    for (index, width) in sorted.iter().enumerate() {
        share = left / (sorted.len() - index);
        if *width > share {
            break;
        }
        left -= width;
    }
    let is_readable = |width: &usize| *width <= share || share >= MIN_WRAPPED_COLUMNS;
    natural
        .iter()
        .all(is_readable)
        .then(|| natural.iter().map(|width| share.min(*width)).collect())
}

/// Prints the rows of a table that is wider than the terminal: one cell per line, with the name of its column.
fn list_rows(
    rows: &[Vec<Span>],
    has_head: bool,
    keeps_first: bool,
    layout: ListingLayout,
) -> Vec<Line> {
    let (head, rows) = match rows.split_first() {
        Some((head, rows)) if has_head => (head.as_slice(), rows),
        _ => (&[][..], rows),
    };
    let label_width = head.iter().map(|name| columns(&name.text)).max();
    let mut lines = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        if has_head && index > 0 {
            lines.push(Line::default());
        }
        for (column, cell) in row.iter().enumerate() {
            let mut line = Line::default();
            match (head.get(column), label_width) {
                (Some(name), Some(width)) => {
                    line.push(&name.text, Style::DIM);
                    let gap = width.saturating_sub(columns(&name.text)) + COLUMN_GAP;
                    line.push(&spaces(gap), Style::NONE);
                }
                _ if column > 0 => line.push(&spaces(CONTINUATION_INDENT), Style::NONE),
                _ => {}
            }
            line.push(&cell.text, cell.style);
            if keeps_first && column == 0 {
                lines.push(line);
            } else {
                lines.extend(wrap_row(&line, layout));
            }
        }
    }
    lines
}

/// Wraps a row between words. The further lines are indented.
fn wrap_row(line: &Line, layout: ListingLayout) -> Vec<Line> {
    let Some(width) = layout.width.filter(|width| line.columns() > *width) else {
        return vec![line.clone()];
    };
    let text = line.text();
    let indent = columns(&text) - columns(text.trim_start()) + CONTINUATION_INDENT;
    let indent = indent.min(width / 2);
    let mut lines: Vec<Line> = Vec::new();
    let mut current = Line::default();
    for span in &line.spans {
        for word in split_words(&span.text) {
            let mut word = word;
            while !word.is_empty() {
                let free = width.saturating_sub(current.columns());
                let is_first =
                    current.columns() <= indent && !lines.is_empty() || current.columns() == 0;
                if columns(word.trim_end()) <= free {
                    current.push(word, span.style);
                    break;
                }
                if is_first {
                    let (part, rest) = split_word(word, free);
                    current.push(part, span.style);
                    word = rest;
                }
                lines.push(std::mem::take(&mut current));
                current.push(&spaces(indent), Style::NONE);
            }
        }
    }
    lines.push(current);
    lines
}

/// Wraps a cell between words, or inside a word that is wider than the column.
fn wrap(cell: &Span, width: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut current = String::new();
    for word in split_words(&cell.text) {
        let mut word = word;
        while columns(&current) + columns(word.trim_end()) > width {
            if current.is_empty() {
                let (part, rest) = split_word(word, width);
                (current, word) = (part.to_owned(), rest);
            }
            lines.push(Line::new(std::mem::take(&mut current), cell.style));
        }
        current.push_str(word);
    }
    if !current.is_empty() || lines.is_empty() {
        lines.push(Line::new(current.trim_end(), cell.style));
    }
    lines
}

/// Splits a word that is wider than `width`: after a separator, such as in a path, or else where it has to.
fn split_word(word: &str, width: usize) -> (&str, &str) {
    let (part, rest) = split_at_width(word, width.max(1));
    match part.rfind(['/', ',', '=', ';', '}']) {
        Some(at) if columns(part) <= 2 * at => word.split_at_checked(at + 1),
        _ => None,
    }
    .unwrap_or((part, rest))
}

/// Wraps a text between words, as rows are. The lines are indented.
pub(super) fn wrap_text(text: &str, indent: usize, width: Option<usize>) -> Vec<String> {
    let width = width.map_or(usize::MAX, |width| width.saturating_sub(indent));
    let lines = text.lines().flat_map(|line| {
        let line = cell(line, Style::NONE);
        wrap(&line, width.max(1))
    });
    let indented = |line: Line| match line.text().trim_end() {
        "" => String::new(),
        text => spaces(indent) + text,
    };
    lines.map(indented).collect()
}

/// Splits a text after each sequence of spaces.
fn split_words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let word = rest.len() - rest.trim_start_matches(' ').len();
        let end = rest
            .get(word..)?
            .find(' ')
            .map_or(rest.len(), |end| word + end);
        let tail = rest.get(end..)?;
        let end = end + (tail.len() - tail.trim_start_matches(' ').len());
        let (word, after) = rest.split_at_checked(end)?;
        rest = after;
        (!word.is_empty()).then_some(word)
    })
}

fn spaces(count: usize) -> String {
    repeat_n(' ', count).collect()
}

/// Makes the texts visible in one line and redacts secrets.
fn clean_line(spans: &[Span], redactor: &Redactor) -> Line {
    let clean = |span: &Span| {
        let text = sanitize_row(&redactor.redact(&span.text)).into_owned();
        cell(text, span.style)
    };
    Line {
        spans: spans.iter().map(clean).collect(),
    }
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
    use bub_settings::Secret;

    use super::*;

    fn plain(text: &str) -> Span {
        cell(text, Style::NONE)
    }

    fn format(listing: &Listing, width: Option<usize>) -> String {
        let layout = ListingLayout {
            width,
            ..ListingLayout::PIPE
        };
        listing.format(layout, &Redactor::new())
    }

    #[test]
    fn columns_are_aligned_by_cells() {
        let mut table = Table::default();
        table.row(["你好", "x"].map(plain));
        table.row(["a", ""].map(plain));
        let mut listing = Listing::default();
        listing.table(table);
        assert_eq!(format(&listing, None), "你好  x\na\n");
    }

    #[test]
    fn in_a_pipe_a_long_value_does_not_move_the_other_rows() {
        let mut table = Table::default();
        let long = "x".repeat(200);
        table.row(["a", &long, "file"].map(plain));
        table.row(["b", "short", "default"].map(plain));
        let shown = format(&Listing::from(table), None);
        let short = format!("b  short{}  default", spaces(MAX_PIPE_COLUMNS - 5));
        assert_eq!(shown, format!("a  {long}  file\n{short}\n"));
    }

    #[test]
    fn a_first_column_that_users_copy_is_never_wrapped() {
        let id = "cli_session~20261118T143000123";
        let mut table = Table::with_head(["SESSION", "TITLE"]).keep_first();
        table.row([plain(id), plain("a title with several words that is long")]);
        let listing = Listing::from(table);
        for width in [32, 40, 60] {
            let shown = format(&listing, Some(width));
            assert!(shown.contains(id), "{width}: {shown}");
        }
    }

    #[test]
    fn a_row_is_one_visible_line() {
        let mut listing = Listing::default();
        listing.row("a  b\r\n\x1b[2J\tc\rd\u{202e}");
        let mut table = Table::default();
        table.row([plain("x\ny"), plain("\x07")]);
        listing.table(table);
        assert_eq!(format(&listing, None), "a  b ␛[2J c␍d\\u{202e}\nx y  ␇\n");
    }

    #[test]
    fn on_a_terminal_rows_and_cells_are_wrapped_between_words() {
        let table = || {
            let mut table = Table::with_head(["NAME", "COUNT", "TEXT"]).numbers(1, 1);
            table.row([plain("a"), plain("7"), plain("some words that are long")]);
            let mut listing = Listing::default();
            listing.row("  a row that has to be wrapped");
            listing.table(table);
            listing
        };
        assert_eq!(
            format(&table(), Some(29)),
            "  a row that has to be\n    wrapped\nNAME  COUNT  TEXT\na         7  some words that\n             are long\n"
        );
        // A terminal that is too narrow for the columns.
        assert_eq!(
            format(&table(), Some(20)),
            "  a row that has to\n    be wrapped\nNAME   a\nCOUNT  7\nTEXT   some words\n  that are long\n"
        );
    }

    #[test]
    fn a_word_that_is_wider_than_its_column_is_split() {
        let lines = wrap(&plain("ab abcdefgh"), 4);
        let lines: Vec<_> = lines.iter().map(Line::text).collect();
        assert_eq!(lines, ["ab ", "abcd", "efgh"]);
        assert_eq!(
            split_word("/home/config.yml:1", 10),
            ("/home/", "config.yml:1")
        );
    }

    #[test]
    fn secrets_are_redacted_before_they_are_wrapped() {
        let redactor = Redactor::new();
        redactor.register(&Secret::from("sk-correct-horse"));
        let mut listing = Listing::default();
        listing.row("key sk-correct-horse");
        let layout = ListingLayout {
            width: Some(10),
            ..ListingLayout::PIPE
        };
        assert_eq!(listing.format(layout, &redactor), "key ***\n");
    }
}
