//! `bub tape list`: the sessions and what they are about.

use std::process::ExitCode;

use bub_tape::{Result, codec};
use clap::{ArgMatches, Command};
use serde_json::json;

use super::{
    context::{ListedTape, WorkspaceTapes},
    flag, json_arg, text,
    writer::ResultWriter,
};

pub(super) fn command() -> Command {
    Command::new("list")
        .about("List the sessions of this workspace, newest first")
        .arg(flag(
            "all-workspaces",
            "List the sessions of all workspaces",
        ))
        .arg(json_arg())
}

pub(super) async fn run(tapes: &WorkspaceTapes, matches: &ArgMatches) -> Result<ExitCode> {
    let everywhere = matches.get_flag("all-workspaces");
    let mut listed = if everywhere {
        tapes.sessions().await?
    } else {
        tapes.sessions_here().await?
    };
    // What a full disk left of a first turn is a file without entries: nobody's session.
    listed.retain(|listed| listed.summary.entries > 0);
    let mut out = ResultWriter::plain(&tapes.settings);
    if matches.get_flag("json") {
        for listed in &listed {
            out.write(&as_json(listed))?;
        }
    } else if listed.is_empty() {
        out.write(if everywhere {
            "(no sessions)\n"
        } else {
            "(no sessions in this workspace)\n"
        })?;
    } else {
        out.write(&table(&listed, everywhere))?;
    }
    out.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// A longer session id would push everything else off the screen.
const MAX_NAME_WIDTH: usize = 60;

/// The title stands last: it is the only column whose length nobody can foresee.
fn table(listed: &[ListedTape], everywhere: bool) -> String {
    let head = [
        "SESSION",
        "CHANNEL",
        "ENTRIES",
        "LAST ACTIVITY (UTC)",
        "WORKSPACE",
        "TITLE",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(listed.iter().map(row));
    if everywhere {
        return text::columns(&rows);
    }
    let without: Vec<_> = rows
        .into_iter()
        .map(|[session, channel, entries, last, _, title]| [session, channel, entries, last, title])
        .collect();
    text::columns(&without)
}

fn row(listed: &ListedTape) -> [String; 6] {
    let summary = &listed.summary;
    let shown = |text: Option<&str>| text.map_or_else(|| "-".to_owned(), text::line);
    [
        text::cut(listed.label(), MAX_NAME_WIDTH),
        shown(listed.channel()),
        summary.entries.to_string(),
        summary
            .last_date
            .as_deref()
            .map_or_else(|| "-".to_owned(), text::date),
        shown(listed.workspace()),
        shown(summary.title.as_deref()),
    ]
}

fn as_json(listed: &ListedTape) -> String {
    let summary = &listed.summary;
    let value = json!({
        "tape": listed.name.as_str(),
        "session_id": summary.session.as_ref().map(|session| &session.session_id),
        "workspace": listed.workspace(),
        "channel": listed.channel(),
        "title": summary.title,
        "entries": summary.entries,
        "first_date": summary.first_date,
        "last_date": summary.last_date,
    });
    text::harmless_json(&(codec::to_python_json(&value) + "\n")).into_owned()
}
