//! A text that is being written, as rows of a screen.

use unicode_segmentation::UnicodeSegmentation as _;

use crate::{Line, Style, columns, sanitize::sanitize};

/// Rows, and where the cursor is in them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EditorLayout {
    /// The rows.
    pub rows: Vec<Line>,
    /// Row and column of the cursor.
    pub cursor: (usize, usize),
    /// For each row the place of the text at which it begins.
    pub starts: Vec<usize>,
}

/// A text with its prompt, broken at the width of the screen. The cursor always has a column of its own.
pub fn lay_out(prompt: &Line, text: &str, cursor: usize, width: usize) -> EditorLayout {
    let width = width.max(2);
    let mut rows = vec![prompt.clone()];
    let mut starts = vec![0];
    let mut column = prompt.columns();
    let mut at_cursor = (0, column);
    let indent = if column + 8 < width { column } else { 0 };
    for (place, cluster) in text.grapheme_indices(true) {
        if place == cursor {
            at_cursor = (rows.len() - 1, column);
        }
        let is_end = cluster == "\n";
        let shown = if cluster == "\t" {
            "    ".into()
        } else {
            sanitize(cluster)
        };
        let wide = if is_end { 0 } else { columns(&shown) };
        // The last column stays free, so that the terminal never decides where a row ends.
        if is_end || column + wide > width - 1 {
            let start = if is_end { place + 1 } else { place };
            let lead = if is_end { indent } else { 0 };
            rows.push(Line::new(" ".repeat(lead), Style::NONE));
            starts.push(start);
            column = lead;
            if !is_end && place == cursor {
                at_cursor = (rows.len() - 1, column);
            }
        }
        if !is_end && let Some(row) = rows.last_mut() {
            row.push(&shown, Style::NONE);
            column += wide;
        }
    }
    if cursor >= text.len() {
        at_cursor = (rows.len() - 1, column);
    }
    EditorLayout {
        rows,
        cursor: at_cursor,
        starts,
    }
}

impl EditorLayout {
    /// At most so many rows, those around the cursor.
    #[must_use]
    pub fn window(mut self, most: usize) -> Self {
        let most = most.max(1);
        if self.rows.len() > most {
            let first = self
                .cursor
                .0
                .saturating_sub(most - 1)
                .min(self.rows.len() - most);
            self.rows = self.rows.drain(first..first + most).collect();
            self.starts = self.starts.drain(first..first + most).collect();
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
            let whole = layout.rows[layout.cursor.0].clone();
            let window = layout.window(2);
            assert_eq!(
                (window.rows.len(), &window.rows[window.cursor.0]),
                (2, &whole)
            );
        }
    }
}
