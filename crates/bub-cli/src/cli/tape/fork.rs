//! `bub tape fork`: creates a session from the entries of another session.

use std::{ops::Bound, process::ExitCode};

use bub_tape::{
    Entry, EntryId, EntryRange, LeaseWait, ResetRequest, Result, SessionInfo, Tape, TapeError,
    TapeListFilter, TapeName,
};
use clap::{Arg, ArgMatches, Command, value_parser};
use serde_json::json;

use super::{
    anchors, tape_arg, text, text_arg,
    workspace_tapes::{ListedTape, WorkspaceTapes},
    writer::ResultWriter,
};

pub(super) fn command() -> Command {
    Command::new("fork")
        .about("Create a session from another session's entries")
        .arg(tape_arg())
        .arg(
            Arg::new("session-id")
                .long("session-id")
                .value_name("NEW")
                .required(true)
                .help("Id of the new session in this workspace"),
        )
        .arg(
            Arg::new("at")
                .long("at")
                .value_name("ENTRY-ID")
                .value_parser(value_parser!(i64))
                .help("Last entry to copy [default: the latest]"),
        )
        .arg(
            Arg::new("at-anchor")
                .long("at-anchor")
                .value_name("NAME")
                .conflicts_with("at")
                .help("Copy entries up to the latest anchor with this name"),
        )
}

pub(super) async fn run(tapes: &WorkspaceTapes, matches: &ArgMatches) -> Result<ExitCode> {
    let source = tapes
        .find_tape(text_arg(matches, "tape").unwrap_or_default())
        .await?;
    let session_id = text_arg(matches, "session-id").unwrap_or_default();
    if session_id.trim().is_empty() {
        return Err(TapeError::InvalidInput(
            "empty session id: pass the id of the new session with `--session-id`".to_owned(),
        ));
    }
    let from = tapes.open_tape(source.name.clone());
    let mut entries = entries_to_copy(&from, &source, matches).await?;
    let count = entries.len() as u64;
    let Some(last) = entries.last() else {
        let text = format!(
            "cannot fork tape `{}`: it is empty; choose another one from `bub tape list`",
            source.name
        );
        return Err(TapeError::InvalidInput(text));
    };
    let target = tapes.open_tape(TapeName::for_session(&tapes.workspace, session_id));
    // The lease prevents turns of the new session while it is being created.
    let lease = target.lease(LeaseWait::No).await?;
    ensure_new_session(&target, session_id).await?;
    // Sidecars first: the new session exists only after its sidecars are complete.
    copy_sidecars(&from, &target, last).await?;
    entries.push(session_info_entry(tapes, &source, session_id, last.id));
    // One batch, so that the session is created completely or not at all.
    target.store().append(target.name(), entries).await?;
    drop(lease);
    let mut out = ResultWriter::for_stdout(&tapes.settings);
    let (label, session) = (
        text::sanitize_line(source.label()),
        text::sanitize_line(session_id),
    );
    out.write(&format!(
        "forked {} of {label} into session {session}\n",
        text::format_count(count, "entry", "entries")
    ))?;
    out.finish()?;
    Ok(ExitCode::SUCCESS)
}

async fn ensure_new_session(target: &Tape, session_id: &str) -> Result<()> {
    if target.summary().await?.entries == 0 {
        return Ok(());
    }
    let session = text::sanitize_line(session_id);
    Err(TapeError::InvalidInput(format!(
        "session `{session}` already exists; choose another id, or see `bub tape show {session}`"
    )))
}

/// Returns the entries up to `--at` or `--at-anchor`, or all entries.
async fn entries_to_copy(
    from: &Tape,
    source: &ListedTape,
    matches: &ArgMatches,
) -> Result<Vec<Entry>> {
    if let Some(name) = text_arg(matches, "at-anchor") {
        let mark = anchors::find_anchor(from, name, source.label()).await?;
        return from
            .entries(EntryRange {
                end: Bound::Included(mark.position),
                ..EntryRange::ALL
            })
            .await;
    }
    let mut entries = from.entries(EntryRange::ALL).await?;
    if let Some(id) = matches.get_one::<i64>("at").copied().map(EntryId::new) {
        // If several entries have this id, the latest counts.
        let at = entries
            .iter()
            .rposition(|entry| entry.id == id)
            .ok_or_else(|| {
                let label = text::sanitize_line(source.label());
                TapeError::NotFound(format!("entry {id} not found; see `bub tape show {label}`"))
            })?;
        entries.truncate(at + 1);
    }
    Ok(entries)
}

/// Returns the entry that records the session and the source of the fork. It follows the copied entries and is outside
/// the context of the model.
fn session_info_entry(
    tapes: &WorkspaceTapes,
    source: &ListedTape,
    session_id: &str,
    at: EntryId,
) -> Entry {
    let channel = source.channel().map(str::to_owned);
    let session = SessionInfo {
        session_id: session_id.to_owned(),
        workspace: Some(tapes.workspace.clone()),
        channel,
    };
    let mut data = session.to_map();
    let from = source
        .summary
        .session
        .as_ref()
        .map(|session| &session.session_id);
    let forked_from = json!({"tape": source.name.as_str(), "session_id": from, "id": at});
    data.insert("forked_from".to_owned(), forked_from);
    Entry::event("session.info", Some(data.into())).exclude_from_context()
}

/// Copies the sidecars as they were when the last entry was written.
async fn copy_sidecars(from: &Tape, target: &Tape, last: &Entry) -> Result<()> {
    for sidecar in from
        .store()
        .list(TapeListFilter::Sidecars(from.name().clone()))
        .await?
    {
        let Some((_, name)) = sidecar.as_sidecar() else {
            continue;
        };
        let mut entries = Tape::new(from.store().clone(), sidecar.clone())
            .entries(EntryRange::ALL)
            .await?;
        entries.retain(|entry| last.timestamp().is_none() || entry.timestamp() <= last.timestamp());
        if entries.is_empty() {
            continue;
        }
        let reset = ResetRequest {
            archive: None,
            initial_entries: Box::new(move |_| entries),
        };
        target
            .store()
            .reset(&target.name().sidecar(name)?, reset)
            .await?;
    }
    Ok(())
}
