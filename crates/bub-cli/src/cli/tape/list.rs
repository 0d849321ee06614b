//! `bub tape list`: lists sessions with their titles.

use std::process::ExitCode;

use bub_tape::Result;
use serde_json::json;

use super::{
    text,
    workspace_tapes::{ListedTape, WorkspaceTapes},
};

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
    tapes.print(&match (listed.as_slice(), args.all_workspaces) {
        ([], true) => "(no sessions)\n".to_owned(),
        ([], false) => "(no sessions in this workspace)\n".to_owned(),
        (listed, all_workspaces) => sessions_table(listed, all_workspaces),
    })
}

/// Formats the sessions as a table. The title comes last, because its length is not limited.
fn sessions_table(listed: &[ListedTape], all_workspaces: bool) -> String {
    let head = "SESSION|CHANNEL|ENTRIES|LAST ACTIVITY (UTC)|WORKSPACE|TITLE";
    let head = head.split('|').map(str::to_owned).collect();
    let mut rows: Vec<Vec<String>> = vec![head];
    rows.extend(listed.iter().map(session_row));
    if !all_workspaces {
        for row in &mut rows {
            row.remove(4);
        }
    }
    text::format_columns(&rows)
}

fn session_row(listed: &ListedTape) -> Vec<String> {
    let summary = &listed.summary;
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        text::sanitize_and_truncate(listed.label(), MAX_NAME_WIDTH),
        or_dash(listed.channel().map(text::sanitize_line)),
        summary.entries.to_string(),
        or_dash(summary.last_date.as_deref().map(text::format_date)),
        or_dash(listed.workspace().map(text::sanitize_line)),
        or_dash(summary.title.as_deref().map(text::sanitize_line)),
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
