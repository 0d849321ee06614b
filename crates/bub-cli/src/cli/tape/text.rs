//! Formats text from tapes for a terminal: safe control characters, readable dates, sizes and columns.

use std::{borrow::Cow, fmt::Write as _};

use bub_tape::Entry;
use bub_terminal::{columns as cells, sanitize::is_unsafe_char};

pub(in crate::cli) use bub_terminal::sanitize::{sanitize, sanitize_line};

/// Replaces control characters in a line, truncates it to `max_chars` characters, and appends `…` if it was longer.
pub(super) fn sanitize_and_truncate(text: &str, max_chars: usize) -> String {
    let text = sanitize_line(text);
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default().trim_end()),
        None => text,
    }
}

/// Escapes the control characters that JSON permits, so that the line is safe on a terminal. The value is unchanged.
pub(super) fn escape_json(json: &str) -> Cow<'_, str> {
    if !json
        .chars()
        .any(|character| is_unsafe_char(character) && character != '\n')
    {
        return Cow::Borrowed(json);
    }
    let mut clean = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        if is_unsafe_char(character) && character != '\n' {
            let _ = write!(clean, "\\u{:04x}", u32::from(character));
        } else {
            clean.push(character);
        }
    }
    Cow::Owned(clean)
}

/// Formats the date of an entry in UTC, like the values of `--since` and `--until`.
pub(super) fn entry_date(entry: &Entry) -> String {
    match entry.timestamp() {
        Some(time) => time.strftime("%Y-%m-%d %H:%M:%S").to_string(),
        None => sanitize_and_truncate(&entry.date, 19),
    }
}

/// Formats a date from a tape in UTC.
pub(super) fn format_date(text: &str) -> String {
    entry_date(&Entry::event("", None).with_date(text))
}

/// Parses a date from a tape, for sorting. Invalid dates sort first.
pub(super) fn parse_sort_time(text: &str) -> impl Ord + use<> {
    Entry::event("", None).with_date(text).timestamp()
}

/// Formats a size with a decimal unit, such as `1.5 MB`.
pub(in crate::cli) fn format_bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if count < 1000 {
        return format!("{count} bytes");
    }
    let mut whole = count;
    let mut tenths = 0;
    let mut unit = "";
    for name in UNITS {
        (whole, tenths, unit) = (whole / 1000, whole % 1000 / 100, name);
        if whole < 1000 {
            break;
        }
    }
    format!("{whole}.{tenths} {unit}")
}

/// Formats a count with its noun, such as `1 entry` or `2 entries`.
pub(in crate::cli) fn format_count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Aligns rows in columns. The width of the last column is not limited.
pub(in crate::cli) fn format_columns<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cells(cell));
        }
    }
    let mut table = String::new();
    for row in rows {
        let mut text = String::new();
        for (width, cell) in widths.iter().zip(row) {
            text.push_str(cell);
            text.extend(std::iter::repeat_n(' ', width - cells(cell) + 2));
        }
        table.push_str(text.trim_end());
        table.push('\n');
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_in_json_are_escaped() {
        assert_eq!(escape_json("\"\u{9b}\"\n"), "\"\\u009b\"\n");
    }

    #[test]
    fn lines_are_cut_between_characters() {
        assert_eq!(sanitize_and_truncate("你好 世界", 3), "你好…");
        assert_eq!(sanitize_and_truncate(" a\n b ", 3), "a b");
    }

    #[test]
    fn sizes_are_human_readable() {
        assert_eq!(
            [0, 999, 1000, 1_550_000].map(format_bytes),
            ["0 bytes", "999 bytes", "1.0 kB", "1.5 MB"]
        );
    }

    #[test]
    fn columns_are_aligned_by_cells() {
        let rows = [
            ["你好".to_owned(), "x".to_owned()],
            ["a".to_owned(), String::new()],
        ];
        assert_eq!(format_columns(&rows), "你好  x\na\n");
    }
}
