//! The terminal as the chat uses it: lines that are finished scroll away and are never touched again; below them a
//! live area is redrawn, and of that only what has changed.

use std::{
    fmt::Write as _,
    io::{self, Write},
};

use crate::{ColorMode, Line};

/// How large the terminal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Columns; at least 1.
    pub columns: usize,
    /// Rows; at least 1.
    pub rows: usize,
}

/// What is to be seen in the live area.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveArea {
    /// Its rows. None may be wider than the terminal; there must be fewer of them than the terminal has.
    pub rows: Vec<Line>,
    /// Row and column of the cursor.
    pub cursor: (usize, usize),
}

/// A terminal, or whatever else takes its bytes.
#[derive(Debug)]
pub struct Screen<W: Write> {
    out: W,
    color_mode: ColorMode,
    size: TerminalSize,
    /// Whether the terminal wraps its lines anew when its width changes.
    reflows: bool,
    /// What stands in the live area: the bytes and the width of each row.
    shown: Vec<(String, usize)>,
    /// Where the cursor is in it.
    cursor: (usize, usize),
}

impl<W: Write> Screen<W> {
    /// A screen whose cursor stands at the beginning of an empty row.
    pub fn new(out: W, size: TerminalSize, color_mode: ColorMode, reflows: bool) -> Self {
        Self {
            out,
            color_mode,
            size,
            reflows,
            shown: Vec::new(),
            cursor: (0, 0),
        }
    }

    /// How large it is.
    pub fn size(&self) -> TerminalSize {
        self.size
    }

    /// Lets finished lines scroll away above the live area, and shows that as it is now. Nothing is written when
    /// nothing has changed.
    pub fn draw(&mut self, finished: &[Line], live: &LiveArea) -> io::Result<()> {
        let rows: Vec<(String, usize)> =
            live.rows.iter().map(|row| self.render_line(row)).collect();
        if finished.is_empty() && rows == self.shown && live.cursor == self.cursor {
            return Ok(());
        }
        let mut out = UpdateBuffer::begin(self.cursor.0);
        out.go_to(0);
        let mut covered = 0;
        for line in finished {
            let (text, width) = self.render_line(line);
            // Wiped before it is written, from the first column: what is wiped behind a text stays part of its row for
            // some terminals, and is wrapped with it. A line of several rows must not let old ones look out.
            out.text.push_str(if width > self.size.columns {
                "\x1b[J"
            } else {
                "\x1b[K"
            });
            covered = if width > self.size.columns {
                self.shown.len()
            } else {
                covered + 1
            };
            out.text.push_str(&text);
            out.text.push_str("\r\n");
        }
        let old = self
            .shown
            .get(covered.min(self.shown.len())..)
            .unwrap_or_default();
        out.row = 0;
        for (index, row) in rows.iter().enumerate() {
            if old.get(index) == Some(row) {
                continue;
            }
            out.go_to(index);
            out.text.push_str("\x1b[K");
            out.text.push_str(&row.0);
        }
        if old.len() > rows.len() {
            out.go_to(rows.len());
            out.text.push_str("\x1b[J");
        }
        out.go_to(live.cursor.0);
        if live.cursor.1 > 0 {
            // Writing to a string cannot fail.
            let _ = write!(out.text, "\x1b[{}C", live.cursor.1);
        }
        (self.shown, self.cursor) = (rows, live.cursor);
        self.out.write_all(out.end().as_bytes())?;
        self.out.flush()
    }

    /// The terminal has, or had meanwhile, another size. What the live area has become is wiped; the next [`Self::draw`]
    /// shows it again.
    pub fn resize(&mut self, size: TerminalSize) -> io::Result<()> {
        let rows_of = |width: usize| {
            if self.reflows {
                width.max(1).div_ceil(size.columns)
            } else {
                1
            }
        };
        let above: usize = self
            .shown
            .iter()
            .take(self.cursor.0)
            .map(|(_, width)| rows_of(*width))
            .sum();
        let within = if self.reflows {
            self.cursor.1 / size.columns
        } else {
            0
        };
        self.size = size;
        self.clear_live_area(above + within)
    }

    /// Removes the live area: the cursor stands below the finished lines.
    pub fn clear(&mut self) -> io::Result<()> {
        self.clear_live_area(self.cursor.0)
    }

    /// Lets the live area stay where it is; the next one is drawn below it.
    pub fn forget(&mut self) {
        (self.shown, self.cursor) = (Vec::new(), (0, 0));
    }

    /// Everything is drawn anew the next time, and the screen above is empty: what Ctrl-L asks for.
    pub fn clear_all(&mut self) -> io::Result<()> {
        (self.shown, self.cursor) = (Vec::new(), (0, 0));
        self.out.write_all(b"\x1b[H\x1b[2J")?;
        self.out.flush()
    }

    fn clear_live_area(&mut self, rows_above: usize) -> io::Result<()> {
        let mut out = UpdateBuffer::begin(rows_above);
        out.go_to(0);
        out.text.push_str("\x1b[J");
        (self.shown, self.cursor) = (Vec::new(), (0, 0));
        self.out.write_all(out.end().as_bytes())?;
        self.out.flush()
    }

    /// The bytes of a line and its width. Tabs stay, to be copied, where they reach as far on every row.
    fn render_line(&self, line: &Line) -> (String, usize) {
        let mut text = String::new();
        let spaced = line.without_tabs();
        let width = spaced.columns();
        let is_whole = width < self.size.columns;
        (if is_whole { line } else { &spaced }).paint(self.color_mode, &mut text);
        (text, width)
    }
}

/// Bytes for one update, which the terminal shows at once, and the row of the live area they have come to.
struct UpdateBuffer {
    text: String,
    row: usize,
}

impl UpdateBuffer {
    fn begin(row: usize) -> Self {
        Self {
            text: "\x1b[?2026h\x1b[?25l".to_owned(),
            row,
        }
    }

    /// Goes to the beginning of a row. Downwards by line feeds: where a window that became lower has cut rows off below
    /// the cursor, they make them again, while a cursor that was only moved would stop short and be believed elsewhere.
    fn go_to(&mut self, row: usize) {
        let up = self.row.saturating_sub(row);
        if up > 0 {
            let _ = write!(self.text, "\x1b[{up}A");
        }
        self.text.push('\r');
        for _ in self.row..row {
            self.text.push('\n');
        }
        self.row = row;
    }

    fn end(mut self) -> String {
        self.text.push_str("\x1b[?25h\x1b[?2026l");
        self.text
    }
}
