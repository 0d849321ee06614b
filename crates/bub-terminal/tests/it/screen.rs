//! Tests of the screen with a terminal emulator: finished lines appear once and in order, and below them is the live
//! area as it was last drawn.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};

use bub_terminal::{
    ColorMode, Line, Style, columns,
    screen::{LiveArea, Screen, TerminalSize},
    split_at_width,
};
use proptest::prelude::*;

#[derive(Clone, Default)]
struct SharedOutput(Arc<Mutex<Vec<u8>>>);

impl SharedOutput {
    fn after(&self, length: usize) -> String {
        String::from_utf8(self.0.lock().unwrap()[length..].to_vec()).unwrap()
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

impl Write for SharedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One frame: finished lines, rows of the live area, and the row of the cursor.
type Frame = (Vec<String>, Vec<String>, usize);

fn texts(max_count: usize, max_chars: usize) -> impl Strategy<Value = Vec<String>> {
    let letter = prop_oneof![8 => "[a-z]", 1 => Just("你".to_owned()), 1 => Just(" ".to_owned())];
    let text = prop::collection::vec(letter, 0..max_chars);
    prop::collection::vec(text.prop_map(|parts| parts.concat()), 0..max_count)
}

fn frames() -> impl Strategy<Value = Vec<Frame>> {
    prop::collection::vec((texts(4, 30), texts(6, 12), 0usize..6), 1..12)
}

/// Wraps a line as a terminal does.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut rows = Vec::new();
    let mut rest = text;
    loop {
        let (row, after) = split_at_width(rest, width);
        rows.push(row.trim_end().to_owned());
        if after.is_empty() {
            return rows;
        }
        rest = after;
    }
}

fn all_rows(parser: &mut vt100::Parser) -> Vec<String> {
    let (height, width) = parser.screen().size();
    parser.screen_mut().set_scrollback(usize::MAX);
    let mut above = parser.screen().scrollback();
    let mut rows = Vec::new();
    while above > 0 {
        let take = above.min(usize::from(height));
        rows.extend(parser.screen().rows(0, width).take(take));
        above -= take;
        parser.screen_mut().set_scrollback(above);
    }
    rows.extend(parser.screen().rows(0, width));
    rows.into_iter()
        .map(|row| row.trim_end().to_owned())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_is_drawn_is_there(width in 4usize..20, height in 7usize..10, frames in frames()) {
        let output = SharedOutput::default();
        let size = TerminalSize { columns: width, rows: height };
        let mut screen = Screen::new(output.clone(), size, ColorMode::Colors, false);
        let mut expected = Vec::new();
        let mut shown = (Vec::new(), 0);
        for (lines, rows, cursor) in &frames {
            let rows: Vec<String> = rows.iter().map(|row| split_at_width(row, width).0.to_owned()).collect();
            let cursor = (*cursor).min(rows.len().saturating_sub(1));
            let column = rows.get(cursor).map_or(0, |row| columns(row) / 2);
            let live = LiveArea {
                rows: rows.iter().map(|row| Line::new(row, Style::BOLD)).collect(),
                cursor: (cursor, column),
            };
            let finished: Vec<Line> = lines.iter().map(|line| Line::new(line, Style::NONE)).collect();
            let before = output.len();
            screen.draw(&finished, &live).unwrap();
            expected.extend(lines.iter().flat_map(|line| wrapped(line, width)));
            // The size of an update is proportional to its content, and it never clears the whole screen.
            let frame = output.after(before);
            let content_bytes: usize = lines.iter().chain(&rows).map(String::len).sum();
            prop_assert!(frame.len() <= 80 + content_bytes + 32 * (lines.len() + rows.len() + 1));
            prop_assert!(!frame.contains("\x1b[2J"));
            shown = (rows, column);
        }
        let mut parser = vt100::Parser::new(u16::try_from(height).unwrap(), u16::try_from(width).unwrap(), 1000);
        parser.process(output.after(0).as_bytes());
        let cursor = parser.screen().cursor_position();
        let seen = all_rows(&mut parser).join("\n");
        expected.extend(shown.0.iter().map(|row| row.trim_end().to_owned()));
        let expected = expected.join("\n");
        prop_assert_eq!(seen.trim_end(), expected.trim_end());
        prop_assert_eq!(usize::from(cursor.1), shown.1);
    }
}

#[test]
fn nothing_is_written_when_nothing_has_changed() {
    let output = SharedOutput::default();
    let mut screen = Screen::new(
        output.clone(),
        TerminalSize {
            columns: 20,
            rows: 10,
        },
        ColorMode::Colors,
        true,
    );
    let rows = vec![
        Line::new("> ", Style::NONE),
        Line::new("status", Style::DIM),
    ];
    let live = LiveArea {
        rows,
        cursor: (0, 2),
    };
    screen.draw(&[], &live).unwrap();
    let length = output.len();
    screen.draw(&[], &live).unwrap();
    assert_eq!(output.len(), length);
    // Only the changed row is written.
    let changed = LiveArea {
        rows: vec![live.rows[0].clone(), Line::new("other", Style::DIM)],
        cursor: (0, 2),
    };
    screen.draw(&[], &changed).unwrap();
    let written =
        "\x1b[?2026h\x1b[?25l\r\r\n\x1b[K\x1b[2mother\x1b[0m\x1b[1A\r\x1b[2C\x1b[?25h\x1b[?2026l";
    assert_eq!(output.after(length), written);
}

// A terminal that rewraps its lines shows the row above the prompt as two rows.
#[test]
fn after_a_resize_the_live_area_is_found_where_the_terminal_has_put_it() {
    for (reflows, up) in [(true, "\x1b[2A"), (false, "\x1b[1A")] {
        let output = SharedOutput::default();
        let mut screen = Screen::new(
            output.clone(),
            TerminalSize {
                columns: 20,
                rows: 10,
            },
            ColorMode::None,
            reflows,
        );
        let rows = vec![
            Line::new("fifteen columns", Style::NONE),
            Line::new("> ", Style::NONE),
        ];
        screen
            .draw(
                &[],
                &LiveArea {
                    rows,
                    cursor: (1, 2),
                },
            )
            .unwrap();
        let length = output.len();
        screen
            .resize(TerminalSize {
                columns: 10,
                rows: 10,
            })
            .unwrap();
        assert_eq!(
            output.after(length),
            format!("\x1b[?2026h\x1b[?25l{up}\r\x1b[J\x1b[?25h\x1b[?2026l")
        );
    }
}

// The user makes the window lower, and the screen does not know the new size yet.
#[test]
fn rows_that_were_cut_off_below_the_cursor_cost_no_line_above_it() {
    let output = SharedOutput::default();
    let mut screen = Screen::new(
        output.clone(),
        TerminalSize {
            columns: 20,
            rows: 8,
        },
        ColorMode::None,
        true,
    );
    let mut parser = vt100::Parser::new(8, 20, 1000);
    let mut seen = 0;
    for number in 0..20 {
        let rows =
            ["growing", "> ", "status"].map(|row| Line::new(format!("{row}{number}"), Style::NONE));
        let line = Line::new(format!("line {number}"), Style::NONE);
        screen
            .draw(
                &[line],
                &LiveArea {
                    rows: rows.to_vec(),
                    cursor: (1, 2),
                },
            )
            .unwrap();
        parser.process(output.after(seen).as_bytes());
        seen = output.len();
        // The cursor is in the last row but one; the terminal discards the row below it.
        if number > 8 && number % 2 == 0 {
            let rows = parser.screen().cursor_position().0 + 1;
            parser.screen_mut().set_size(rows, 20);
        }
    }
    let text = all_rows(&mut parser).join("\n");
    for number in 0..20 {
        let line = format!("line {number}");
        assert_eq!(
            text.lines().filter(|row| **row == line).count(),
            1,
            "{line} in\n{text}"
        );
    }
}
