//! `bub tape list`: lists sessions with their titles.

use std::process::ExitCode;

use bub_tape::{Result, codec};
use clap::{ArgMatches, Command};
use serde_json::json;

use super::{
    flag_arg, json_arg, text,
    workspace_tapes::{ListedTape, WorkspaceTapes},
    writer::ResultWriter,
};

pub(super) fn command() -> Command {
    Command::new("list")
        .about("List the sessions of this workspace, newest first")
        .arg(flag_arg(
            "all-workspaces",
            "List the sessions of all workspaces",
        ))
        .arg(json_arg())
}

pub(super) async fn run(tapes: &WorkspaceTapes, matches: &ArgMatches) -> Result<ExitCode> {
    let all_workspaces = matches.get_flag("all-workspaces");
    let mut listed = if all_workspaces {
        tapes.sessions().await?
    } else {
        tapes.workspace_sessions().await?
    };
    // After a full disk, the file of a first turn may have no entries. It is not a session.
    listed.retain(|listed| listed.summary.entries > 0);
    let mut out = ResultWriter::for_stdout(&tapes.settings);
    if matches.get_flag("json") {
        for listed in &listed {
            out.write(&session_json(listed))?;
        }
    } else if listed.is_empty() {
        out.write(if all_workspaces {
            "(no sessions)\n"
        } else {
            "(no sessions in this workspace)\n"
        })?;
    } else {
        out.write(&sessions_table(&listed, all_workspaces))?;
    }
    out.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// Maximum width of a session id, so that the other columns stay visible.
const MAX_NAME_WIDTH: usize = 60;

/// Formats the sessions as a table. The title comes last, because its length is not limited.
fn sessions_table(listed: &[ListedTape], all_workspaces: bool) -> String {
    let head = [
        "SESSION",
        "CHANNEL",
        "ENTRIES",
        "LAST ACTIVITY (UTC)",
        "WORKSPACE",
        "TITLE",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(listed.iter().map(session_row));
    if all_workspaces {
        return text::format_columns(&rows);
    }
    let without: Vec<_> = rows
        .into_iter()
        .map(|[session, channel, entries, last, _, title]| [session, channel, entries, last, title])
        .collect();
    text::format_columns(&without)
}

fn session_row(listed: &ListedTape) -> [String; 6] {
    let summary = &listed.summary;
    let text_or_dash =
        |text: Option<&str>| text.map_or_else(|| "-".to_owned(), text::sanitize_line);
    [
        text::sanitize_and_truncate(listed.label(), MAX_NAME_WIDTH),
        text_or_dash(listed.channel()),
        summary.entries.to_string(),
        summary
            .last_date
            .as_deref()
            .map_or_else(|| "-".to_owned(), text::format_date),
        text_or_dash(listed.workspace()),
        text_or_dash(summary.title.as_deref()),
    ]
}

fn session_json(listed: &ListedTape) -> String {
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
    text::escape_json(&(codec::to_python_json(&value) + "\n")).into_owned()
}
