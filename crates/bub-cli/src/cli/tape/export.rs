//! `bub tape export`: exports a tape as JSON Lines or Markdown.

use std::{fmt::Write as _, io::IsTerminal as _, path::PathBuf, process::ExitCode};

use bub_tape::{Entry, EntryKind, Query, Result, codec};

use super::{
    text,
    workspace_tapes::{ListedTape, WorkspaceTapes},
    writer::ResultWriter,
};

/// Export a tape as JSON Lines or Markdown
#[derive(clap::Args)]
pub(super) struct ExportArgs {
    /// Session id, tape name, or a unique prefix
    tape: String,
    /// Output format: `jsonl` for programs, `markdown` for reading
    #[arg(long, value_parser = ["jsonl", "markdown"], default_value = "jsonl")]
    format: String,
    /// Output file, which must not exist [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) async fn run(tapes: &WorkspaceTapes, args: ExportArgs) -> Result<ExitCode> {
    let listed = tapes.find_tape(&args.tape).await?;
    let to_terminal = args.output.is_none() && std::io::stdout().is_terminal();
    let mut out = match &args.output {
        Some(path) => ResultWriter::create_file(&tapes.settings, path)?,
        None => ResultWriter::for_stdout(&tapes.settings),
    };
    let tape = tapes.open_tape(&listed.name);
    let entries = tape.query(Query::new());
    let written = async {
        if args.format == "markdown" {
            out.write(&document_head(&listed))?;
            out.write_entries(entries, entry_section).await
        } else if to_terminal {
            out.write_entries(entries, text::entry_json).await
        } else {
            out.write_entries(entries, codec::encode).await
        }
    }
    .await;
    if let Some(path) = &args.output {
        if written.is_err() {
            // A partial export must not look like a complete one.
            let _ = std::fs::remove_file(path);
        }
        let (label, path) = (text::sanitize_line(listed.label()), path.display());
        let count = text::format_count(written?, "entry", "entries");
        notice!("wrote {count} of {label} to {path}");
        return Ok(ExitCode::SUCCESS);
    }
    written.map(|_| ExitCode::SUCCESS)
}

/// Returns the title and the metadata of the tape.
fn document_head(listed: &ListedTape) -> String {
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
            let value = text::sanitize_line(value).replace('`', "'");
            let _ = writeln!(head, "- {name}: `{value}`");
        }
    }
    head + "\n"
}

/// Returns a section with a heading and the content of the entry: messages as written, other entries in a code fence.
fn entry_section(entry: &Entry) -> String {
    let is_anchor = entry.kind == EntryKind::Anchor;
    let level = if is_anchor { "##" } else { "###" };
    let (title, date) = (text::entry_title(entry), text::entry_date(entry));
    let section = format!("{level} {title} (#{}, {date})\n\n", entry.id);
    let body = text::entry_text(entry);
    let body = text::sanitize(&body);
    if body.is_empty() {
        return section;
    }
    if entry.kind == EntryKind::Message {
        return format!("{section}{body}\n\n");
    }
    let fence = code_fence(&body);
    format!("{section}{fence}text\n{body}\n{fence}\n\n")
}

/// Returns a fence that is longer than any sequence of backticks in the body, so that the body cannot close it.
fn code_fence(body: &str) -> String {
    let backticks = body.split(|character| character != '`').map(str::len);
    "`".repeat(backticks.max().map_or(3, |longest| 3.max(longest + 1)))
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
