//! `bub tape fork`: creates a session from the entries of another session.

use std::{ops::Bound, process::ExitCode};

use bub_tape::{Entry, EntryId, EntryRange, Result, SessionInfo, Tape, TapeError, TapeName};

use super::{
    show, text,
    workspace_tapes::{ListedTape, WorkspaceTapes},
};

/// Create a session from another session's entries
#[derive(clap::Args)]
pub(super) struct ForkArgs {
    /// Session id, tape name, or a unique prefix
    tape: String,
    /// Id of the new session in this workspace
    #[arg(long, value_name = "NEW")]
    session_id: String,
    /// Last entry to copy [default: the latest]
    #[arg(long, value_name = "ENTRY-ID")]
    at: Option<i64>,
    /// Copy entries up to the latest anchor with this name
    #[arg(long, value_name = "NAME", conflicts_with = "at")]
    at_anchor: Option<String>,
}

pub(super) async fn run(tapes: &WorkspaceTapes, args: ForkArgs) -> Result<ExitCode> {
    let source = tapes.find_tape(&args.tape).await?;
    let session_id = args.session_id.as_str();
    if session_id.trim().is_empty() {
        return Err(TapeError::InvalidInput(
            "empty session id: pass the id of the new session with `--session-id`".to_owned(),
        ));
    }
    let from = tapes.open_tape(&source.name);
    let entries = entries_to_copy(&from, &source, &args).await?;
    let count = text::format_count(entries.len(), "entry", "entries");
    if entries.is_empty() {
        return Err(TapeError::InvalidInput(format!(
            "cannot fork tape `{}`: it is empty; choose another one from `bub tape list`",
            source.name
        )));
    }
    let session = text::sanitize_line(session_id);
    let target = tapes.open_tape(&TapeName::for_session(&tapes.workspace, session_id));
    let info = SessionInfo {
        session_id: session_id.to_owned(),
        workspace: Some(tapes.workspace.clone()),
        channel: source.channel().map(str::to_owned),
    };
    from.copy_to(&target, entries, &info).await?;
    if let Some(problem) = target.store().chain_problem(target.name()).await? {
        notice!("{}", text::chain_warning("copy", &problem));
    }
    let label = text::sanitize_line(source.label());
    tapes.print(&format!(
        "forked {count} of {label} into session {session}\n"
    ))
}

/// Returns the entries up to `--at` or `--at-anchor`, or all entries.
async fn entries_to_copy(from: &Tape, source: &ListedTape, args: &ForkArgs) -> Result<Vec<Entry>> {
    if let Some(name) = &args.at_anchor {
        let mark = show::find_anchor(from, name, source.label()).await?;
        let range = EntryRange {
            end: Bound::Included(mark.position),
            ..EntryRange::ALL
        };
        return from.entries(range).await;
    }
    let mut entries = from.entries(EntryRange::ALL).await?;
    if let Some(id) = args.at.map(EntryId::new) {
        // If several entries have this id, the latest counts.
        let Some(at) = entries.iter().rposition(|entry| entry.id == id) else {
            let label = text::sanitize_line(source.label());
            let problem = format!("entry {id} not found; see `bub tape show {label}`");
            return Err(TapeError::NotFound(problem));
        };
        entries.truncate(at + 1);
    }
    Ok(entries)
}
