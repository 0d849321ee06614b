//! Rows of a terminal as an SVG image: monospaced text with the colors that the program asked for.

use std::fmt::Write as _;

/// The width of a column in pixels: 0.6 of the font size, as in common monospaced fonts.
const COLUMN: usize = 9;
const FONT_SIZE: usize = 15;
const LINE: usize = 21;
const MARGIN: usize = 20;
const TITLE_HEIGHT: usize = 40;

/// A corner that many fonts lack. It is drawn as a line.
const CORNER: &str = "⎿";

/// The window has its own background, so the image is readable on light and dark pages.
const STYLE: &str = "\
text{font:15px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#e6edf3;white-space:pre}
.b{font-weight:bold}.d{fill-opacity:.6}.i{font-style:italic}.u{text-decoration:underline}
path{fill:none;stroke:#e6edf3}path.d{stroke-opacity:.6}
.c1{fill:#ff7b72}.c2{fill:#7ee787}.c3{fill:#e3b341}.c4{fill:#79c0ff}.c5{fill:#d2a8ff}.c6{fill:#76e3ea}
";

/// One row of the screen.
#[derive(Default)]
pub(super) struct Row {
    runs: Vec<Run>,
}

/// Neighboring cells that look the same.
struct Run {
    column: usize,
    width: usize,
    text: String,
    /// Classes of [`STYLE`], separated by spaces.
    classes: String,
}

impl Row {
    /// The text of the row, without trailing spaces.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let mut width = 0;
        for run in &self.runs {
            text.extend(std::iter::repeat_n(' ', run.column - width));
            text.push_str(&run.text);
            width = run.column + run.width;
        }
        text
    }

    /// Removes trailing spaces.
    fn trim_end(&mut self) {
        while let Some(run) = self.runs.last_mut() {
            let length = run.text.trim_end().len();
            run.width -= run.text.len() - length;
            run.text.truncate(length);
            if length > 0 {
                break;
            }
            self.runs.pop();
        }
    }

    /// Replaces `before`, a number and `after` at the end of the row.
    pub(super) fn replace_number(&mut self, before: &str, after: &str, replacement: &str) {
        let Some(run) = self.runs.last_mut() else {
            return;
        };
        let Some((head, tail)) = run.text.split_once(before) else {
            return;
        };
        let number = tail.strip_suffix(after).unwrap_or_default();
        if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
            run.text = format!("{head}{replacement}");
            run.width = run.text.chars().count();
        }
    }
}

/// Reads the rows of a screen, without the empty ones at its end.
pub(super) fn read_rows(screen: &vt100::Screen) -> Vec<Row> {
    let (height, width) = screen.size();
    let mut rows: Vec<Row> = (0..height)
        .map(|row| {
            let cells = (0..width).filter_map(|column| {
                let cell = screen.cell(row, column)?;
                (!cell.is_wide_continuation()).then_some((usize::from(column), cell))
            });
            let mut line = Row::default();
            for (column, cell) in cells {
                push_cell(&mut line.runs, column, cell);
            }
            line.trim_end();
            line
        })
        .collect();
    while rows.pop_if(|row| row.runs.is_empty()).is_some() {}
    rows
}

/// Appends a cell to the last run, or starts another one.
fn push_cell(runs: &mut Vec<Run>, column: usize, cell: &vt100::Cell) {
    let text = if cell.has_contents() {
        cell.contents()
    } else {
        " "
    };
    let width = if cell.is_wide() { 2 } else { 1 };
    let classes = cell_classes(cell);
    match runs.last_mut().filter(|_| text != CORNER) {
        // Spaces look the same in every style that is drawn here.
        Some(run) if text == " " || run.classes == classes && run.text.trim() != CORNER => {
            run.text.push_str(text);
            run.width += width;
        }
        _ => runs.push(Run {
            column,
            width,
            text: text.to_owned(),
            classes,
        }),
    }
}

fn cell_classes(cell: &vt100::Cell) -> String {
    let color = match cell.fgcolor() {
        vt100::Color::Idx(color @ 1..=6) => format!("c{color}"),
        _ => String::new(),
    };
    let attributes = [
        (cell.bold(), "b"),
        (cell.dim(), "d"),
        (cell.italic(), "i"),
        (cell.underline(), "u"),
        (!color.is_empty(), &color),
    ];
    let names: Vec<&str> = attributes
        .into_iter()
        .filter_map(|(is_set, name)| is_set.then_some(name))
        .collect();
    names.join(" ")
}

/// Draws rows in a window with a title.
pub(super) fn render(title: &str, columns: usize, rows: &[Row]) -> String {
    let width = columns * COLUMN + 2 * MARGIN;
    let height = rows.len() * LINE + TITLE_HEIGHT + MARGIN;
    let mut image = String::new();
    let _ = write!(
        image,
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">
<title>A session of {title}</title>
<style>
{STYLE}</style>
<rect x=".5" y=".5" width="{}" height="{}" rx="8" fill="#0d1117" stroke="#57606a"/>
<g fill="#57606a"><circle cx="22" cy="20" r="6"/><circle cx="42" cy="20" r="6"/><circle cx="62" cy="20" r="6"/></g>
<text x="{}" y="25" text-anchor="middle" class="d">{title}</text>
"##,
        width - 1,
        height - 1,
        width / 2,
    );
    for (index, row) in rows.iter().enumerate() {
        let y = TITLE_HEIGHT + index * LINE + FONT_SIZE;
        for run in &row.runs {
            render_run(&mut image, y, run);
        }
    }
    image.push_str("</svg>\n");
    image
}

fn render_run(image: &mut String, y: usize, run: &Run) {
    let text = run.text.trim();
    if text.is_empty() {
        return;
    }
    let indent = run.text.len() - run.text.trim_start().len();
    let spaces = run.text.len() - text.len();
    let x = MARGIN + (run.column + indent) * COLUMN;
    let class = match run.classes.as_str() {
        "" => String::new(),
        classes => format!(r#" class="{classes}""#),
    };
    if text == CORNER {
        let (x, y) = (x + 2, y - 13);
        let _ = writeln!(image, r#"<path d="M{x}.5 {y}v14.5h5"{class}/>"#);
        return;
    }
    // Keeps the columns where the viewer's font has another width.
    let length = (run.width - spaces) * COLUMN;
    let _ = write!(
        image,
        r#"<text x="{x}" y="{y}" textLength="{length}"{class}>"#
    );
    for character in text.chars() {
        match character {
            '&' => image.push_str("&amp;"),
            '<' => image.push_str("&lt;"),
            '>' => image.push_str("&gt;"),
            character => image.push(character),
        }
    }
    image.push_str("</text>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(output: &str) -> Vec<Row> {
        let mut parser = vt100::Parser::new(4, 20, 0);
        parser.process(output.as_bytes());
        read_rows(parser.screen())
    }

    #[test]
    fn attributes_become_classes_and_markup_is_escaped() {
        let rows = screen("a <b> & \x1b[1;34mbold\x1b[m\r\n\r\n  \x1b[2m⎿ dim\x1b[m   ");
        assert_eq!(rows.len(), 3);
        let image = render("bub", 20, &rows);
        for part in [
            r#"<text x="20" y="55" textLength="63">a &lt;b&gt; &amp;</text>"#,
            r#"<text x="92" y="55" textLength="36" class="b c4">bold</text>"#,
            r#"<path d="M40.5 84v14.5h5" class="d"/>"#,
            r#"<text x="56" y="97" textLength="27" class="d">dim</text>"#,
        ] {
            assert!(image.contains(part), "{part}\n{image}");
        }
    }

    #[test]
    fn only_a_number_between_the_given_texts_is_replaced() {
        let mut rows = screen("took 17 ms\r\ntook long");
        for row in &mut rows {
            row.replace_number("took ", " ms", "took 2 ms");
        }
        let texts: Vec<String> = rows.iter().map(Row::text).collect();
        assert_eq!(texts, ["took 2 ms", "took long"]);
    }
}
