//! `bub tape show`: shows the entries of a tape.

use std::process::ExitCode;

use bub_tape::{Entry, Query, Result, Tape, codec};
use clap::{Arg, ArgMatches, Command, value_parser};
use futures_util::TryStreamExt as _;

use super::{
    color::ColorSupport, json_arg, kinds_arg, payload, selected_kinds, tape_arg, text, text_arg,
    workspace_tapes::WorkspaceTapes, writer::ResultWriter,
};

pub(super) fn command() -> Command {
    Command::new("show")
        .about("Show the entries of a tape")
        .arg(tape_arg())
        .arg(
            Arg::new("after-anchor")
                .long("after-anchor")
                .value_name("NAME")
                .help("Only entries after the latest anchor with this name"),
        )
        .arg(
            Arg::new("last")
                .long("last")
                .value_name("N")
                .value_parser(value_parser!(usize))
                .help("Only the last N entries"),
        )
        .arg(kinds_arg())
        .arg(json_arg())
}

pub(super) async fn run(tapes: &WorkspaceTapes, matches: &ArgMatches) -> Result<ExitCode> {
    let listed = tapes
        .find_tape(text_arg(matches, "tape").unwrap_or_default())
        .await?;
    let tape = tapes.open_tape(listed.name.clone());
    let anchor = text_arg(matches, "after-anchor");
    let mut query = Query::new().kinds(selected_kinds(matches));
    if let Some(name) = anchor {
        super::anchors::find_anchor(&tape, name, listed.label()).await?;
        query = query.after_anchor(name);
    }
    let json = matches.get_flag("json");
    let style = ColorSupport::from_settings(&tapes.settings);
    let format = |entry: &Entry| {
        if json {
            text::escape_json(&codec::encode(entry)).into_owned()
        } else {
            format_entry(entry, style)
        }
    };
    let last = matches.get_one::<usize>("last").copied();
    let mut out = if json {
        ResultWriter::for_stdout(&tapes.settings)
    } else {
        ResultWriter::for_pager(&tapes.settings)
    };
    let shown = print_entries(&tape, (query, last), &mut out, &format).await;
    // Wait for the pager also after an error, or it would outlive the program.
    out.finish()?;
    if shown? == 0 && !json {
        super::print_note("no entries match");
    }
    Ok(ExitCode::SUCCESS)
}

async fn print_entries(
    tape: &Tape,
    (query, last): (Query, Option<usize>),
    out: &mut ResultWriter,
    format: &impl Fn(&Entry) -> String,
) -> Result<usize> {
    let mut shown = 0;
    if let Some(count) = last {
        let mut entries = tape.query_all(query.newest_first().limit(count)).await?;
        entries.reverse();
        for entry in &entries {
            shown += 1;
            if !out.write(&format(entry))? {
                break;
            }
        }
        return Ok(shown);
    }
    let mut entries = tape.query(query);
    while let Some(entry) = entries.try_next().await? {
        shown += 1;
        if !out.write(&format(&entry))? {
            break;
        }
    }
    Ok(shown)
}

/// Formats an entry: a headline with id, kind and date, the indented content, and an empty line.
fn format_entry(entry: &Entry, style: ColorSupport) -> String {
    let title = text::sanitize_line(&format!("{} {}", entry.kind, payload::entry_label(entry)));
    let head = format!(
        "{} {}  {}\n",
        style.paint_dim(&format!("#{}", entry.id)),
        style.paint_title(&entry.kind, &title),
        style.paint_dim(&text::entry_date(entry))
    );
    let body = payload::entry_text(entry);
    let mut text = head;
    for line in text::sanitize(&body).lines() {
        text.push_str(if line.is_empty() { "" } else { "  " });
        text.push_str(line);
        text.push('\n');
    }
    text.push('\n');
    text
}
