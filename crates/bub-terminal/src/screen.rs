//! Output of the chat to the terminal. Finished lines scroll away and are never changed. Below them is a live area, of
//! which only changed rows are redrawn.

use std::{
    fmt::Write as _,
    io::{self, Write},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::{ColorMode, Line};

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Columns; at least 1.
    pub columns: usize,
    /// Rows; at least 1.
    pub rows: usize,
}

/// The content of the live area: the rows below the finished lines, which are redrawn when they change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveArea {
    /// The rows. No row may be wider than the terminal, and there must be fewer rows than the terminal has.
    pub rows: Vec<Line>,
    /// Row and column of the cursor in `rows`, counted from 0.
    pub cursor: (usize, usize),
}

/// Draws lines and a live area on a terminal, or on any writer.
#[derive(Debug)]
pub struct Screen<W: Write> {
    out: W,
    color_mode: ColorMode,
    size: TerminalSize,
    /// Whether the terminal rewraps its lines when its width changes.
    reflows: bool,
    /// The live area as it was drawn last: the bytes of each row, and its width in columns.
    drawn_rows: Vec<(String, usize)>,
    /// Row and column of the cursor in the live area, counted from 0.
    cursor: (usize, usize),
}

impl<W: Write> Screen<W> {
    /// Creates a screen. The cursor must be at the start of an empty row.
    pub fn new(out: W, size: TerminalSize, color_mode: ColorMode, reflows: bool) -> Self {
        Self {
            out,
            color_mode,
            size,
            reflows,
            drawn_rows: Vec::new(),
            cursor: (0, 0),
        }
    }

    /// Returns the size of the screen.
    pub fn size(&self) -> TerminalSize {
        self.size
    }

    /// Prints finished lines above the live area and updates the live area. Writes nothing if nothing has changed.
    pub fn draw(&mut self, finished: &[Line], live: &LiveArea) -> io::Result<()> {
        let rows: Vec<_> = live.rows.iter().map(|row| self.render_line(row)).collect();
        if finished.is_empty() && rows == self.drawn_rows && live.cursor == self.cursor {
            return Ok(());
        }
        let mut out = UpdateBuffer::begin(self.cursor.0);
        out.move_to_row(0);
        let mut covered = 0;
        for line in finished {
            let (text, width) = self.render_line(line);
            // Erase the row before writing it, from the first column. If a row is erased after its text, some terminals
            // treat the erased cells as part of the text and rewrap them. For a line that spans several rows, erase all
            // rows below, too.
            if width > self.size.columns {
                out.text.push_str("\x1b[J");
                covered = self.drawn_rows.len();
            } else {
                out.text.push_str("\x1b[K");
                covered += 1;
            }
            out.text.push_str(&text);
            out.text.push_str("\r\n");
        }
        let remaining_rows = self.drawn_rows.get(covered..).unwrap_or_default();
        out.row = 0;
        for (index, row) in rows.iter().enumerate() {
            if remaining_rows.get(index) == Some(row) {
                continue;
            }
            out.move_to_row(index);
            out.text.push_str("\x1b[K");
            out.text.push_str(&row.0);
        }
        if remaining_rows.len() > rows.len() {
            out.move_to_row(rows.len());
            out.text.push_str("\x1b[J");
        }
        out.move_to_row(live.cursor.0);
        if live.cursor.1 > 0 {
            // Writing to a string cannot fail.
            let _ = write!(out.text, "\x1b[{}C", live.cursor.1);
        }
        (self.drawn_rows, self.cursor) = (rows, live.cursor);
        self.out.write_all(out.finish().as_bytes())?;
        self.out.flush()
    }

    /// Sets the size after the terminal was resized, and erases the live area. The next [`Self::draw`] shows it again.
    pub fn resize(&mut self, size: TerminalSize) -> io::Result<()> {
        let mut rows_above = self.cursor.0;
        if self.reflows {
            let above = self.drawn_rows.iter().take(self.cursor.0);
            rows_above = above
                .map(|(_, width)| width.max(&1).div_ceil(size.columns))
                .sum();
            rows_above += self.cursor.1 / size.columns;
        }
        self.size = size;
        self.erase_live_area(rows_above)
    }

    /// Erases the live area. The cursor is then below the finished lines.
    pub fn clear_live_area(&mut self) -> io::Result<()> {
        self.erase_live_area(self.cursor.0)
    }

    /// Leaves the live area on the screen. The next live area is drawn below it.
    pub fn keep_live_area(&mut self) {
        (self.drawn_rows, self.cursor) = (Vec::new(), (0, 0));
    }

    /// Copies text to the clipboard of the terminal with the sequence OSC 52. Terminals may ignore it.
    pub fn copy_to_clipboard(&mut self, text: &str) -> io::Result<()> {
        let sequence = format!("\x1b]52;c;{}\x07", STANDARD.encode(text));
        self.out.write_all(sequence.as_bytes())?;
        self.out.flush()
    }

    /// Clears the whole screen, for Ctrl-L. The next [`Self::draw`] draws the complete live area again.
    pub fn clear_screen(&mut self) -> io::Result<()> {
        self.keep_live_area();
        self.out.write_all(b"\x1b[H\x1b[2J")?;
        self.out.flush()
    }

    /// Erases the live area. `rows_above` is the number of its rows above the cursor.
    fn erase_live_area(&mut self, rows_above: usize) -> io::Result<()> {
        let mut out = UpdateBuffer::begin(rows_above);
        out.move_to_row(0);
        out.text.push_str("\x1b[J");
        self.keep_live_area();
        self.out.write_all(out.finish().as_bytes())?;
        self.out.flush()
    }

    /// Returns the bytes of a line and its width in columns. Tabs are kept, so that users can copy them. If the line
    /// does not fit on one row, tabs become spaces, because wrapping would change the width of tabs.
    fn render_line(&self, line: &Line) -> (String, usize) {
        let mut text = String::new();
        let expanded = line.without_tabs();
        let width = expanded.columns();
        let fits_on_row = width < self.size.columns;
        (if fits_on_row { line } else { &expanded }).paint(self.color_mode, &mut text);
        (text, width)
    }
}

/// The bytes of one synchronized update, which the terminal shows at once, and the row of the cursor in the live area.
struct UpdateBuffer {
    text: String,
    row: usize,
}

impl UpdateBuffer {
    /// Begins an update with the cursor in `row` of the live area.
    fn begin(row: usize) -> Self {
        Self {
            text: "\x1b[?2026h\x1b[?25l".to_owned(),
            row,
        }
    }

    /// Moves the cursor to the start of a row of the live area. Moves down with line feeds: if the window shrank and
    /// lost rows below the cursor, line feeds create them again. An escape sequence that moves the cursor would stop at
    /// the last row of the window.
    fn move_to_row(&mut self, row: usize) {
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

    /// Ends the update and returns its bytes.
    fn finish(mut self) -> String {
        self.text.push_str("\x1b[?25h\x1b[?2026l");
        self.text
    }
}
