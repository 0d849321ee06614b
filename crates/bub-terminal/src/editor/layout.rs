//! Layout of the edited text as rows of the screen.

use unicode_segmentation::UnicodeSegmentation as _;

use crate::{Line, Style, columns, sanitize::sanitize};

/// The rows of a text and the position of the cursor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EditorLayout {
    /// The rows, from top to bottom.
    pub rows: Vec<Line>,
    /// Row and column of the cursor, counted from 0.
    pub cursor: (usize, usize),
}

/// Lays out a text after the prompt of the editor, wrapped at `width` columns. The last column stays free for the
/// cursor. `cursor` is a byte offset in `text`.
pub fn lay_out(prompt: &Line, text: &str, cursor: usize, width: usize) -> EditorLayout {
    let width = width.max(2);
    let mut rows = vec![prompt.clone()];
    let mut column = prompt.columns();
    let mut cursor_position = (0, column);
    let indent = if column + 8 < width { column } else { 0 };
    for (offset, cluster) in text.grapheme_indices(true) {
        if offset == cursor {
            cursor_position = (rows.len() - 1, column);
        }
        let is_newline = cluster == "\n";
        let visible = if cluster == "\t" {
            "    ".into()
        } else {
            sanitize(cluster)
        };
        let cluster_width = if is_newline { 0 } else { columns(&visible) };
        // Keep the last column free, so that the terminal itself never wraps a row.
        if is_newline || column + cluster_width > width - 1 {
            let row_indent = if is_newline { indent } else { 0 };
            rows.push(Line::new(" ".repeat(row_indent), Style::NONE));
            column = row_indent;
            if !is_newline && offset == cursor {
                cursor_position = (rows.len() - 1, column);
            }
        }
        if !is_newline && let Some(row) = rows.last_mut() {
            row.push(&visible, Style::NONE);
            column += cluster_width;
        }
    }
    if cursor >= text.len() {
        cursor_position = (rows.len() - 1, column);
    }
    EditorLayout {
        rows,
        cursor: cursor_position,
    }
}

impl EditorLayout {
    /// Returns the layout with at most `max_rows` rows. The row of the cursor is always included.
    #[must_use]
    pub fn limit_rows(mut self, max_rows: usize) -> Self {
        let max_rows = max_rows.max(1);
        if self.rows.len() > max_rows {
            let first = self.cursor.0.saturating_sub(max_rows - 1);
            let first = first.min(self.rows.len() - max_rows);
            self.rows = self.rows.drain(first..first + max_rows).collect();
            self.cursor.0 -= first;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visible_part(text: &str, cursor: usize, width: usize) -> (Vec<String>, (usize, usize)) {
        let layout = lay_out(&Line::new("> ", Style::NONE), text, cursor, width);
        (layout.rows.iter().map(Line::text).collect(), layout.cursor)
    }

    #[test]
    fn long_text_wraps_and_the_cursor_is_where_it_belongs() {
        assert_eq!(visible_part("", 0, 10), (vec!["> ".into()], (0, 2)));
        assert_eq!(
            visible_part("abcdefg", 7, 10),
            (vec!["> abcdefg".into()], (0, 9))
        );
        assert_eq!(
            visible_part("abcdefgh", 8, 10),
            (vec!["> abcdefg".into(), "h".into()], (1, 1))
        );
        assert_eq!(
            visible_part("abcdefgh", 7, 10),
            (vec!["> abcdefg".into(), "h".into()], (1, 0))
        );
        assert_eq!(
            visible_part("你好你好x", 12, 10),
            (vec!["> 你好你".into(), "好x".into()], (1, 2))
        );
        assert_eq!(
            visible_part("a\nb", 3, 20),
            (vec!["> a".into(), "  b".into()], (1, 3))
        );
        assert_eq!(
            visible_part("a\n", 2, 10),
            (vec!["> a".into(), String::new()], (1, 0))
        );
        assert_eq!(visible_part("\x1b[31m\tx", 0, 40).0, ["> ␛[31m    x"]);
    }

    #[test]
    fn a_window_keeps_the_cursor() {
        let text = "1\n2\n3\n4\n5";
        for cursor in 0..=text.len() {
            let layout = lay_out(&Line::new("> ", Style::NONE), text, cursor, 20);
            let cursor_row = layout.rows[layout.cursor.0].clone();
            let window = layout.limit_rows(2);
            assert_eq!(
                (window.rows.len(), &window.rows[window.cursor.0]),
                (2, &cursor_row)
            );
        }
    }
}
