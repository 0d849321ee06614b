//! `bub tape export`: exports a tape as JSON Lines or Markdown.

use std::{fmt::Write as _, io::IsTerminal as _, path::PathBuf, process::ExitCode};

use bub::signals;
use bub_agent::conversation::ConversationPart;
use bub_tape::{Entry, ExportSeal, Query, Result, codec};
use futures_util::{StreamExt as _, stream};
use parking_lot::Mutex;

use super::{
    conversation::conversation_parts,
    text,
    workspace_tapes::{ListedTape, WorkspaceTapes},
    writer::ResultWriter,
};
use crate::cli::progress::ProgressBar;

/// Export a tape as JSON Lines or Markdown
#[derive(clap::Args)]
pub(super) struct ExportArgs {
    /// Session id, tape name, or a unique prefix
    tape: String,
    /// Output format: `jsonl` has all entries, `markdown` the conversation [default: `markdown` if FILE ends in `.md` or
    /// `.markdown`, else `jsonl`]
    #[arg(long, value_parser = ["jsonl", "markdown"])]
    format: Option<String>,
    /// Output file, which must not exist [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl ExportArgs {
    /// Returns whether to export Markdown: the format says so, or without one the extension of the output file.
    fn is_markdown(&self) -> bool {
        let extension = || self.output.as_deref()?.extension()?.to_str();
        match &self.format {
            Some(format) => format == "markdown",
            None => extension().is_some_and(|extension| {
                ["md", "markdown"].contains(&&*extension.to_ascii_lowercase())
            }),
        }
    }
}

pub(super) async fn run(tapes: &WorkspaceTapes, args: ExportArgs) -> Result<ExitCode> {
    let listed = tapes.find_tape(&args.tape).await?;
    let Some(path) = &args.output else {
        let out = ResultWriter::for_stdout(&tapes.settings);
        return write(tapes, &args, &listed, out)
            .await
            .map(|_| ExitCode::SUCCESS);
    };
    // From here on, a signal ends the export below, so that no part of a file is left.
    let stop = signals::listen_for_stop();
    let out = ResultWriter::create_file(&tapes.settings, path)?;
    let stopped = stop.token();
    let written = tokio::select! {
        written = write(tapes, &args, &listed, out) => Some(written),
        () = stopped.cancelled() => None,
    };
    if !matches!(written, Some(Ok(_))) {
        // A partial export must not look like a complete one.
        let _ = std::fs::remove_file(path);
    }
    let Some(count) = written.transpose()? else {
        return Ok(stop.exit_code());
    };
    let (label, path) = (text::sanitize_line(listed.label()), path.display());
    let count = text::format_count(count, "entry", "entries");
    notice!("wrote {count} of {label} to {path}");
    Ok(ExitCode::SUCCESS)
}

/// Writes the export, with a warning if the tape is not proven. Returns the number of entries, without the end mark.
async fn write(
    tapes: &WorkspaceTapes,
    args: &ExportArgs,
    listed: &ListedTape,
    mut out: ResultWriter,
) -> Result<u64> {
    let to_terminal = args.output.is_none() && std::io::stdout().is_terminal();
    let tape = tapes.open_tape(&listed.name);
    let problem = tape.store().chain_problem(&listed.name).await?;
    if let Some(problem) = &problem {
        notice!("{}", text::chain_warning("export", problem));
    }
    let total = usize::try_from(listed.summary.entries).unwrap_or(usize::MAX);
    // The bar would be in the middle of the export.
    let progress = (!to_terminal).then(|| ProgressBar::new("exporting", total, &tapes.settings));
    let seal = Mutex::new(ExportSeal::new(problem));
    let entries = tape.query(Query::new()).inspect(|entry| {
        if let Some(progress) = &progress {
            progress.advance("");
        }
        if let Ok(entry) = entry {
            seal.lock().add_entry(entry);
        }
    });
    if args.is_markdown() {
        out.write(&document_head(listed))?;
        let section = |entry: &Entry| {
            let parts = conversation_parts(entry);
            parts
                .iter()
                .map(ConversationPart::format_markdown)
                .collect::<String>()
        };
        out.write_entries(entries, section).await?;
    } else if to_terminal {
        out.write_entries(entries, text::entry_json).await?;
    } else {
        let mark = stream::once(async { seal.lock().end_mark().map(Ok) });
        let entries = entries.chain(mark.filter_map(std::future::ready));
        out.write_entries(entries, codec::encode).await?;
    }
    drop(progress);
    let count = seal.lock().entry_count();
    Ok(count)
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
