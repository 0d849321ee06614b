//! `bub tape export`: exports a tape as JSON Lines or Markdown.

use std::{io::IsTerminal, path::PathBuf, process::ExitCode};

use bub_tape::{Entry, Query, Result, codec};
use clap::{Arg, ArgMatches, Command, value_parser};
use futures_util::TryStreamExt as _;

use super::{
    markdown, tape_arg, text, text_arg,
    workspace_tapes::{ListedTape, WorkspaceTapes},
    writer::ResultWriter,
};

pub(super) fn command() -> Command {
    Command::new("export")
        .about("Export a tape as JSON Lines or Markdown")
        .arg(tape_arg())
        .arg(
            Arg::new("format")
                .long("format")
                .value_name("FORMAT")
                .value_parser(["jsonl", "markdown"])
                .default_value("jsonl")
                .help("Output format: `jsonl` for programs, `markdown` for reading"),
        )
        .arg(
            Arg::new("output")
                .long("output")
                .short('o')
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Output file, which must not exist [default: stdout]"),
        )
}

pub(super) async fn run(tapes: &WorkspaceTapes, matches: &ArgMatches) -> Result<ExitCode> {
    let listed = tapes
        .find_tape(text_arg(matches, "tape").unwrap_or_default())
        .await?;
    let as_markdown = text_arg(matches, "format") == Some("markdown");
    let path = matches.get_one::<PathBuf>("output");
    let to_terminal = path.is_none() && std::io::stdout().is_terminal();
    let format = |entry: &Entry| match (as_markdown, to_terminal) {
        (true, _) => markdown::entry_section(entry),
        (false, true) => text::escape_json(&codec::encode(entry)).into_owned(),
        (false, false) => codec::encode(entry),
    };
    let mut out = match path {
        Some(path) => ResultWriter::create_file(&tapes.settings, path)?,
        None => ResultWriter::for_stdout(&tapes.settings),
    };
    let written = write_entries(tapes, &listed, as_markdown, &mut out, &format).await;
    let finished = written.and_then(|count| out.finish().map(|()| count));
    let Some(path) = path else {
        return finished.map(|_| ExitCode::SUCCESS);
    };
    match finished {
        Ok(count) => {
            let count = text::format_count(count, "entry", "entries");
            super::print_note(&format!(
                "wrote {count} of {} to {}",
                text::sanitize_line(listed.label()),
                path.display()
            ));
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            // A partial export must not look like a complete one.
            let _ = std::fs::remove_file(path);
            Err(error)
        }
    }
}

async fn write_entries(
    tapes: &WorkspaceTapes,
    listed: &ListedTape,
    as_markdown: bool,
    out: &mut ResultWriter,
    format: &impl Fn(&Entry) -> String,
) -> Result<u64> {
    if as_markdown && !out.write(&markdown::document_head(listed))? {
        return Ok(0);
    }
    let tape = tapes.open_tape(listed.name.clone());
    let mut entries = tape.query(Query::new());
    let mut count = 0;
    while let Some(entry) = entries.try_next().await? {
        count += 1;
        if !out.write(&format(&entry))? {
            break;
        }
    }
    Ok(count)
}
