//! The conversation on a tape, for a terminal.

use std::fmt::Write as _;

use bub_agent::conversation::{ConversationPart, PartKind};
use bub_tape::Entry;

use super::text::{self, ColorSupport};
use crate::cli::listing::wrap_text;

/// Maximum lines of a tool result or of the output of a command on a terminal.
const MAX_OUTPUT_LINES: usize = 12;
/// Columns before the text of a part.
const INDENT: usize = 2;

/// Returns the parts of the conversation that an entry records. They are safe on a terminal.
pub(super) fn conversation_parts(entry: &Entry) -> Vec<ConversationPart> {
    let parts = ConversationPart::from_entry(entry).into_iter();
    let parts = parts.map(|part| ConversationPart {
        title: text::sanitize_line(&part.title),
        body: text::sanitize(&part.body).into_owned(),
        date: text::entry_date(entry),
        ..part
    });
    parts.collect()
}

/// Formats the part for a terminal of this width: a headline, the indented text, and an empty line. Long output is
/// truncated.
pub(super) fn format_part(
    part: &ConversationPart,
    style: ColorSupport,
    width: Option<usize>,
) -> String {
    let title = match part.kind {
        PartKind::User => style.paint("1;34", &part.title),
        PartKind::Assistant => style.paint("1;32", &part.title),
        PartKind::Call | PartKind::Output => style.paint("36", &part.title),
        PartKind::Anchor => style.paint("1;35", &part.title),
        PartKind::Error => style.paint("1;31", &part.title),
    };
    let mut text = format!("{title}  {}\n", style.paint_dim(&part.date));
    let lines: Vec<&str> = part.body.lines().collect();
    let count = match part.kind {
        PartKind::Output => lines.len().min(MAX_OUTPUT_LINES),
        _ => lines.len(),
    };
    for line in lines.iter().take(count) {
        let wrapped = match part.kind {
            // Output may be a table or code.
            PartKind::Output => vec![format!("  {line}").trim_end().to_owned()],
            _ if line.is_empty() => vec![String::new()],
            _ => wrap_text(line, INDENT, width),
        };
        for line in wrapped {
            text.extend([line.as_str(), "\n"]);
        }
    }
    if count < lines.len() {
        let more = text::format_count(lines.len() - count, "line", "lines");
        let more = style.paint_dim(&format!("… {more} more; see `--raw`"));
        let _ = writeln!(text, "  {more}");
    }
    text.push('\n');
    text
}
