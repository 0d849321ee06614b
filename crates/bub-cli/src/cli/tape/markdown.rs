//! Formats a tape as a Markdown document.

use std::fmt::Write as _;

use bub_tape::{Entry, EntryKind};

use super::{payload, text, workspace_tapes::ListedTape};

/// Returns the title and the metadata of the tape.
pub(super) fn document_head(listed: &ListedTape) -> String {
    let summary = &listed.summary;
    let title = summary.title.as_deref().unwrap_or_else(|| listed.label());
    let mut head = format!("# {}\n\n", text::sanitize_line(title));
    let fields = [
        ("session", Some(listed.label())),
        ("tape", Some(listed.name.as_str())),
        ("workspace", listed.workspace()),
        ("channel", listed.channel()),
        ("first entry", summary.first_date.as_deref()),
        ("last entry", summary.last_date.as_deref()),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            let _ = writeln!(
                head,
                "- {name}: `{}`",
                text::sanitize_line(value).replace('`', "'")
            );
        }
    }
    head.push('\n');
    head
}

/// Returns a section with a heading and the content of the entry: messages as written, other entries in a code fence.
pub(super) fn entry_section(entry: &Entry) -> String {
    let level = if entry.kind == EntryKind::Anchor {
        "##"
    } else {
        "###"
    };
    let title = text::sanitize_line(&format!("{} {}", entry.kind, payload::entry_label(entry)));
    let mut section = format!(
        "{level} {title} (#{}, {})\n\n",
        entry.id,
        text::entry_date(entry)
    );
    let body = payload::entry_text(entry);
    let body = text::sanitize(&body);
    if body.is_empty() {
        return section;
    }
    if entry.kind == EntryKind::Message {
        section.push_str(&body);
    } else {
        let fence = code_fence(&body);
        let _ = write!(section, "{fence}text\n{body}\n{fence}");
    }
    section.push_str("\n\n");
    section
}

/// Returns a fence that is longer than any run of backticks in the body, so that the body cannot close it.
fn code_fence(body: &str) -> String {
    let longest = body
        .split(|character| character != '`')
        .map(str::len)
        .max()
        .unwrap_or(0);
    "`".repeat(3.max(longest + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_longer_than_what_it_holds() {
        assert_eq!(code_fence("no"), "```");
        assert_eq!(code_fence("a ```` b"), "`````");
    }

    #[test]
    fn an_entry_is_a_section() {
        let message = Entry::message("user", "hi *there*").with_date("2026-01-02T03:04:05+00:00");
        assert_eq!(
            entry_section(&message),
            "### message user (#0, 2026-01-02 03:04:05)\n\nhi *there*\n\n"
        );
        let result = Entry::tool_result(vec!["ok".into()]).with_date("2026-01-02T03:04:05Z");
        assert_eq!(
            entry_section(&result),
            "### tool_result (#0, 2026-01-02 03:04:05)\n\n```text\nok\n```\n\n"
        );
    }
}
