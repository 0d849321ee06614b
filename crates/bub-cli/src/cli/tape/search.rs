//! `bub tape search`: searches one tape, a workspace, or all workspaces.

use std::{cmp::Reverse, process::ExitCode};

use bub_tape::{Query, Result, Search, SearchHit, TapeError, TapeName, codec};
use clap::{Arg, ArgMatches, Command, value_parser};
use serde_json::json;

use super::{
    color::ColorSupport,
    flag_arg, json_arg, kinds_arg, payload,
    progress::ProgressLine,
    selected_kinds, text, text_arg,
    workspace_tapes::{ListedTape, WorkspaceTapes},
    writer::ResultWriter,
};

pub(super) fn command() -> Command {
    let date = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("DATE").help(help)
    };
    Command::new("search")
        .about("Search tapes of this workspace")
        .long_about(
            "Search tapes of this workspace. Lists exact matches first, then similar ones, newest first. Without `--kinds`, \
             searches messages and tool results.",
        )
        .arg(Arg::new("words").value_name("WORDS").required(true).help("Text to search for; quote text with spaces"))
        .arg(super::tape_arg().required(false).help("Session id, tape name, or a unique prefix [default: all tapes of this workspace]"))
        .arg(flag_arg("all-workspaces", "Search the sessions of all workspaces").conflicts_with("tape"))
        .arg(date("since", "Only entries on or after this date (YYYY-MM-DD) or ISO 8601 time (UTC)"))
        .arg(date("until", "Only entries on or before this date or time"))
        .arg(kinds_arg())
        .arg(
            Arg::new("limit")
                .long("limit")
                .value_name("N")
                .default_value("20")
                .value_parser(value_parser!(usize))
                .help("Maximum number of matches"),
        )
        .arg(json_arg())
}

pub(super) async fn run(tapes: &WorkspaceTapes, matches: &ArgMatches) -> Result<ExitCode> {
    let search = search_from_args(matches);
    if search.text.trim().is_empty() {
        return Err(TapeError::InvalidInput(
            "empty search text: pass the words to search for".to_owned(),
        ));
    }
    let sessions = match text_arg(matches, "tape") {
        Some(tape) => vec![tapes.find_tape(tape).await?],
        None if matches.get_flag("all-workspaces") => tapes.sessions().await?,
        None => tapes.workspace_sessions().await?,
    };
    // Search an empty tape first, to report an invalid date also if there are no sessions.
    let validated = tapes
        .open_tape(TapeName::for_session(&tapes.workspace, ""))
        .search(&search)
        .await;
    validated.map_err(|error| match error {
        TapeError::InvalidInput(message) => TapeError::InvalidInput(format!(
            "{}; write dates as 2026-01-31 or 2026-01-31T12:00:00Z",
            message.trim_end_matches('.')
        )),
        other => other,
    })?;
    let (hits, filtered) = search_sessions(tapes, &sessions, &search).await?;
    let mut out = ResultWriter::for_stdout(&tapes.settings);
    let style = ColorSupport::from_settings(&tapes.settings);
    for (session, hit) in &hits {
        let line = if matches.get_flag("json") {
            hit_json(session, hit)
        } else {
            format_hit(session, hit, style)
        };
        if !out.write(&line)? {
            break;
        }
    }
    out.finish()?;
    if hits.is_empty() {
        super::print_note("no matches");
    }
    if filtered > 0 {
        super::print_note(&format!(
            "{} omitted",
            text::format_count(
                filtered,
                "output of an earlier search",
                "outputs of earlier searches"
            )
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn search_from_args(matches: &ArgMatches) -> Search {
    let mut search = Search::new(text_arg(matches, "words").unwrap_or_default());
    search.limit = matches
        .get_one::<usize>("limit")
        .copied()
        .unwrap_or(search.limit);
    let kinds = selected_kinds(matches);
    let mut within = if kinds.is_empty() {
        search.within.clone()
    } else {
        Query::new().kinds(kinds)
    };
    if let Some(since) = text_arg(matches, "since") {
        within = within.since(since);
    }
    if let Some(until) = text_arg(matches, "until") {
        within = within.until(until);
    }
    search.within(within)
}

/// Returns the best matches of all sessions, exact ones first, then newest first, and the number of omitted matches.
async fn search_sessions<'a>(
    tapes: &WorkspaceTapes,
    sessions: &'a [ListedTape],
    search: &Search,
) -> Result<(Vec<(&'a ListedTape, SearchHit)>, u64)> {
    let mut progress = ProgressLine::delayed("searching", sessions.len());
    let (mut hits, mut filtered) = (Vec::new(), 0);
    for session in sessions {
        progress.advance(session.label());
        let result = tapes.open_tape(session.name.clone()).search(search).await?;
        hits.extend(result.hits.into_iter().map(|hit| (session, hit)));
        filtered += result.filtered as u64;
    }
    // The sort is stable: entries with equal or unreadable dates keep the order of the tape.
    hits.sort_by_key(|(_, hit)| Reverse((hit.exact, hit.entry.timestamp())));
    hits.truncate(search.limit);
    Ok((hits, filtered))
}

fn format_hit(session: &ListedTape, hit: &SearchHit, style: ColorSupport) -> String {
    let entry = &hit.entry;
    let title = text::sanitize_line(&format!("{} {}", entry.kind, payload::entry_label(entry)));
    let match_note = if hit.exact { "" } else { "  (near match)" };
    format!(
        "{} {} {}  {}{match_note}\n  {}\n",
        text::sanitize_line(session.label()),
        style.paint_dim(&format!("#{}", entry.id)),
        style.paint_title(&entry.kind, &title),
        style.paint_dim(&text::entry_date(entry)),
        text::sanitize_line(&hit.snippet)
    )
}

fn hit_json(session: &ListedTape, hit: &SearchHit) -> String {
    let entry = &hit.entry;
    let value = json!({
        "tape": session.name.as_str(),
        "session_id": session.summary.session.as_ref().map(|session| &session.session_id),
        "id": entry.id,
        "kind": entry.kind.as_str(),
        "date": entry.date,
        "exact": hit.exact,
        "snippet": hit.snippet,
    });
    text::escape_json(&(codec::to_python_json(&value) + "\n")).into_owned()
}
