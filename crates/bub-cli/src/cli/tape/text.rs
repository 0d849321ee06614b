//! Formats tapes as text for a terminal: the content of entries, dates, sizes and colors. Escapes control
//! characters.

use std::{
    fmt::{Display, Write as _},
    io::IsTerminal as _,
};

use bub::logging::should_use_color;
use bub_agent::conversation;
use bub_settings::Settings;
use bub_tape::{ChainProblem, Entry, EntryKind, codec};
use bub_terminal::sanitize::is_unsafe_char;
use serde_json::Value;

pub(super) use crate::cli::listing::format_columns;
pub(super) use bub_agent::conversation::{entry_label, entry_text};
pub(in crate::cli) use bub_terminal::sanitize::{sanitize, sanitize_line};

/// Replaces control characters in a line, truncates it to `max_chars` characters, and appends `…` if it was longer.
pub(super) fn sanitize_and_truncate(text: &str, max_chars: usize) -> String {
    let text = sanitize_line(text);
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default().trim_end()),
        None => text,
    }
}

/// Returns the warning about a copy of a tape whose hash chain has a problem.
pub(super) fn chain_warning(copy: &str, problem: &ChainProblem) -> String {
    let status = if problem.is_unproven() {
        "not proven"
    } else {
        "broken"
    };
    let problem = sanitize_line(&problem.to_string());
    format!("warning: the {copy} stays `{status}` for `bub tape verify`: {problem}")
}

/// Replaces control characters in JSON text with `\u` escapes, except newlines, so that the text is safe on a terminal.
/// It still means the same JSON value.
fn escape_json(json: &str) -> String {
    let mut clean = String::with_capacity(json.len());
    for character in json.chars() {
        if is_unsafe_char(character) && character != '\n' {
            let _ = write!(clean, "\\u{:04x}", u32::from(character));
        } else {
            clean.push(character);
        }
    }
    clean
}

/// Formats a value as one line of JSON that is safe on a terminal.
pub(super) fn json_line(value: &Value) -> String {
    escape_json(&codec::to_python_json(value)) + "\n"
}

/// Formats an entry as one line of JSON that is safe on a terminal.
pub(super) fn entry_json(entry: &Entry) -> String {
    escape_json(&codec::encode(entry))
}

/// Formats the date of an entry in UTC, like the values of `--since` and `--until`.
pub(super) fn entry_date(entry: &Entry) -> String {
    sanitize_line(&conversation::entry_date(entry))
}

/// Formats a date from a tape in UTC.
pub(super) fn format_date(text: &str) -> String {
    entry_date(&Entry::event("", None).with_date(text))
}

/// Parses a date from a tape into a value for sorting. An invalid date is smaller than all valid dates.
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
pub(in crate::cli) fn format_count<N>(number: N, one: &str, many: &str) -> String
where
    N: Copy + Display + From<u8> + PartialEq,
{
    format!("{number} {}", if number == 1.into() { one } else { many })
}

/// Whether results are colored. The text is complete without colors.
#[derive(Debug, Clone, Copy)]
pub(super) struct ColorSupport(bool);

impl ColorSupport {
    /// Enables colors on a terminal, unless `NO_COLOR` is set or `TERM` is `dumb`.
    pub(super) fn from_settings(settings: &Settings) -> Self {
        Self(std::io::stdout().is_terminal() && should_use_color(settings))
    }

    /// Formats secondary text.
    pub(super) fn paint_dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// Formats the title of an entry by its kind.
    pub(super) fn paint_title(self, entry: &Entry) -> String {
        let code = match entry.kind {
            EntryKind::Message => "1",
            EntryKind::Anchor => "1;35",
            EntryKind::ToolCall | EntryKind::ToolResult => "36",
            EntryKind::Error => "1;31",
            EntryKind::System | EntryKind::Event | EntryKind::Other(_) => "2",
        };
        self.paint(code, &entry_title(entry))
    }

    pub(super) fn paint(self, code: &str, text: &str) -> String {
        if self.0 {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Returns the kind of an entry and its label, in one line.
pub(super) fn entry_title(entry: &Entry) -> String {
    sanitize_line(&format!("{} {}", entry.kind, entry_label(entry)))
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
}
