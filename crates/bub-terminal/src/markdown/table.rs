//! Layout of tables: in columns if they fit, otherwise each row as `name: value` lines.

use pulldown_cmark::Alignment;

use super::{MarkdownStyle, inline::InlineText};
use crate::{Line, Style};

/// Minimum width of a column whose cells are wrapped. If less is available, or a word does not fit, the table becomes a
/// list.
const MIN_COLUMN_WIDTH: usize = 6;

/// The cells of a table.
#[derive(Debug, Default)]
pub(super) struct TableBlock {
    pub(super) alignments: Vec<Alignment>,
    pub(super) head: Vec<InlineText>,
    pub(super) rows: Vec<Vec<InlineText>>,
}

impl TableBlock {
    pub(super) fn lay_out(self, width: usize, markdown_style: MarkdownStyle) -> Vec<Line> {
        match self.column_widths(width) {
            Some(widths) => self.lay_out_grid(&widths, markdown_style),
            None => self.lay_out_list(width, markdown_style),
        }
    }

    /// Returns the width of each column, or `None` if the columns do not fit. Narrow columns get the width they need;
    /// the others share the remaining width.
    fn column_widths(&self, width: usize) -> Option<Vec<usize>> {
        let count = self.alignments.len();
        let mut required = vec![(1, 1); count];
        for row in std::iter::once(&self.head).chain(&self.rows) {
            for (column, cell) in required.iter_mut().zip(row) {
                let (line, word) = cell.max_widths();
                *column = (column.0.max(line), column.1.max(word));
            }
        }
        let mut remaining = width.checked_sub(3 * count.saturating_sub(1))?;
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|column| required.get(*column).copied());
        let mut widths = vec![0; count];
        for (done, column) in order.into_iter().enumerate() {
            let (line, word) = required.get(column).copied()?;
            let assigned = line.min(remaining / (count - done));
            if assigned < word || assigned < line.min(MIN_COLUMN_WIDTH) {
                return None;
            }
            *widths.get_mut(column)? = assigned;
            remaining -= assigned;
        }
        Some(widths)
    }

    /// Lays out the table in columns.
    fn lay_out_grid(self, widths: &[usize], markdown_style: MarkdownStyle) -> Vec<Line> {
        let (bar, cross, dash) = match markdown_style {
            MarkdownStyle::Styled => (" │ ", "─┼─", "─"),
            MarkdownStyle::Plain => (" | ", "-|-", "-"),
        };
        let head = self
            .head
            .into_iter()
            .map(|cell| cell.with_style(Style::BOLD));
        let head: Vec<InlineText> = head.collect();
        let mut lines = lay_out_row(&head, widths, &self.alignments, bar);
        let dashes: Vec<String> = widths.iter().map(|width| dash.repeat(*width)).collect();
        lines.push(Line::new(dashes.join(cross), Style::DIM));
        for cells in &self.rows {
            lines.extend(lay_out_row(cells, widths, &self.alignments, bar));
        }
        lines
    }

    /// Lays out each row as `name: value` lines.
    fn lay_out_list(self, width: usize, markdown_style: MarkdownStyle) -> Vec<Line> {
        let rule = match markdown_style {
            MarkdownStyle::Styled => "─",
            MarkdownStyle::Plain => "-",
        };
        if self.rows.is_empty() {
            let head = self.head.into_iter();
            let lines = head.flat_map(|cell| cell.with_style(Style::BOLD).wrap(width));
            return lines.collect();
        }
        let names: Vec<String> = self.head.iter().map(|cell| cell.text_from(0)).collect();
        let mut lines = Vec::new();
        for cells in self.rows {
            if !lines.is_empty() {
                lines.push(Line::new(rule.repeat(width.min(3)), Style::DIM));
            }
            for (name, cell) in names.iter().zip(cells) {
                let mut text = InlineText::default();
                if !name.is_empty() {
                    text.push(&format!("{name}: "), Style::BOLD);
                }
                text.append(cell);
                lines.extend(text.wrap(width));
            }
        }
        lines
    }
}

/// Lays out one row of the grid. Cells that are too long wrap, so a row can have several lines.
fn lay_out_row(
    cells: &[InlineText],
    widths: &[usize],
    alignments: &[Alignment],
    bar: &str,
) -> Vec<Line> {
    let (empty, blank) = (InlineText::default(), Line::default());
    let cells = cells.iter().chain(std::iter::repeat(&empty));
    let wrapped = widths
        .iter()
        .zip(cells)
        .map(|(width, cell)| cell.wrap(*width));
    let wrapped: Vec<Vec<Line>> = wrapped.collect();
    let height = wrapped.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let mut lines = vec![Line::default(); height];
    for (index, line) in lines.iter_mut().enumerate() {
        for (column, (cell, width)) in wrapped.iter().zip(widths).enumerate() {
            if column > 0 {
                line.push(bar, Style::DIM);
            }
            let part = cell.get(index).unwrap_or(&blank);
            let space = width.saturating_sub(part.columns());
            let before = match alignments.get(column) {
                Some(Alignment::Right) => space,
                Some(Alignment::Center) => space / 2,
                _ => 0,
            };
            line.push(&" ".repeat(before), Style::NONE);
            line.append(part);
            line.push(&" ".repeat(space - before), Style::NONE);
        }
        line.trim_end();
    }
    lines
}
