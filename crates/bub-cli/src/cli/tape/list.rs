//! `bub tape list`: lists sessions with their titles.

use std::process::ExitCode;

use bub_tape::Result;
use bub_terminal::{Span, Style};
use serde_json::json;

use super::{
    text,
    workspace_tapes::{ListedTape, WorkspaceTapes},
};
use crate::cli::listing::{Table, cell};

/// Maximum width of a session id, so that the other columns stay visible.
const MAX_NAME_WIDTH: usize = 60;

/// List the sessions of this workspace, newest first
#[derive(clap::Args)]
pub(super) struct ListArgs {
    /// List the sessions of all workspaces
    #[arg(long)]
    all_workspaces: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(tapes: &WorkspaceTapes, args: ListArgs) -> Result<ExitCode> {
    let mut listed = tapes.sessions(args.all_workspaces).await?;
    // If the disk was full during the first turn of a session, the tape may have no entries. Do not list it.
    listed.retain(|listed| listed.summary.entries > 0);
    if args.json {
        return tapes.print(&listed.iter().map(session_json).collect::<String>());
    }
    match (listed.as_slice(), args.all_workspaces) {
        ([], true) => tapes.print("(no sessions)\n"),
        ([], false) => tapes.print("(no sessions in this workspace)\n"),
        (listed, all_workspaces) => tapes.print_table(sessions_table(listed, all_workspaces)),
    }
}

/// Formats the sessions as a table. The title comes last, because its length is not limited.
fn sessions_table(listed: &[ListedTape], all_workspaces: bool) -> Table {
    let mut head = vec!["SESSION", "CHANNEL", "ENTRIES", "LAST ACTIVITY (UTC)"];
    if all_workspaces {
        head.push("WORKSPACE");
    }
    head.push("TITLE");
    let mut table = Table::with_head(head).numbers(2, 1).keep_first();
    for listed in listed {
        let mut row = session_row(listed);
        if !all_workspaces {
            row.remove(4);
        }
        table.row(row);
    }
    table
}

fn session_row(listed: &ListedTape) -> Vec<Span> {
    let summary = &listed.summary;
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        cell(
            text::sanitize_and_truncate(listed.label(), MAX_NAME_WIDTH),
            Style::BOLD,
        ),
        cell(
            or_dash(listed.channel().map(text::sanitize_line)),
            Style::NONE,
        ),
        cell(summary.entries.to_string(), Style::NONE),
        cell(
            or_dash(summary.last_date.as_deref().map(text::format_date)),
            Style::DIM,
        ),
        cell(
            or_dash(listed.workspace().map(text::sanitize_line)),
            Style::DIM,
        ),
        cell(
            or_dash(summary.title.as_deref().map(text::sanitize_line)),
            Style::NONE,
        ),
    ]
}

fn session_json(listed: &ListedTape) -> String {
    let summary = &listed.summary;
    text::json_line(&json!({
        "tape": listed.name.as_str(),
        "session_id": listed.session_id(),
        "workspace": listed.workspace(),
        "channel": listed.channel(),
        "title": summary.title,
        "entries": summary.entries,
        "first_date": summary.first_date,
        "last_date": summary.last_date,
    }))
}
