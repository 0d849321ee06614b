//! `bub tape search`: searches one tape, a workspace, or all workspaces.

use std::{cmp::Reverse, process::ExitCode};

use bub_tape::{Query, Result, Search, SearchHit, TapeError, TapeName};
use serde_json::json;

use super::{
    KINDS_HELP, entry_kinds,
    text::{self, ColorSupport},
    workspace_tapes::{ListedTape, WorkspaceTapes},
    writer::ResultWriter,
};
use crate::cli::{dates::parse_date, progress::ProgressBar};

/// Search tapes of this workspace
///
/// Lists exact matches first, then similar ones, newest first. Without `--kinds`, searches messages and tool results.
#[derive(clap::Args)]
pub(super) struct SearchArgs {
    /// Text to search for; quote text with spaces
    words: String,
    /// Session id, tape name, or a unique prefix [default: all tapes of this workspace]
    tape: Option<String>,
    /// Search the sessions of all workspaces
    #[arg(long, conflicts_with = "tape")]
    all_workspaces: bool,
    /// Only entries on or after this date or time (UTC), such as 2026-01-31, or since an age, such as 7d
    #[arg(long, value_name = "DATE", value_parser = parse_date)]
    since: Option<String>,
    /// Only entries on or before this date or time
    #[arg(long, value_name = "DATE", value_parser = parse_date)]
    until: Option<String>,
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', help = KINDS_HELP)]
    kinds: Vec<String>,
    /// Maximum number of matches
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(tapes: &WorkspaceTapes, args: SearchArgs) -> Result<ExitCode> {
    let search = args.search();
    if search.text.trim().is_empty() {
        return Err(TapeError::InvalidInput(
            "empty search text: pass the words to search for".to_owned(),
        ));
    }
    let sessions = match &args.tape {
        Some(tape) => vec![tapes.find_tape(tape).await?],
        None => tapes.sessions(args.all_workspaces).await?,
    };
    // Search an empty tape first, to report an invalid range also if there are no sessions.
    let empty_tape = tapes.open_tape(&TapeName::for_session(&tapes.workspace, ""));
    empty_tape.search(&search).await?;
    let (hits, filtered) = search_sessions(tapes, &sessions, &search).await?;
    let style = ColorSupport::from_settings(&tapes.settings);
    let mut out = ResultWriter::for_stdout(&tapes.settings);
    for (session, hit) in &hits {
        let line = if args.json {
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
        notice!("no matches");
    }
    if filtered > 0 {
        let (one, many) = ("output of an earlier search", "outputs of earlier searches");
        notice!("{} omitted", text::format_count(filtered, one, many));
    }
    Ok(ExitCode::SUCCESS)
}

impl SearchArgs {
    fn search(&self) -> Search {
        let mut search = Search::new(&self.words);
        search.limit = self.limit;
        let mut within = if self.kinds.is_empty() {
            search.within.clone()
        } else {
            Query::new().kinds(entry_kinds(&self.kinds))
        };
        if let Some(since) = &self.since {
            within = within.since(since);
        }
        if let Some(until) = &self.until {
            within = within.until(until);
        }
        search.within(within)
    }
}

/// Returns the best matches of all sessions: exact ones first, then newest first. Also returns the number of matches
/// that were omitted because they contain the output of an earlier search.
async fn search_sessions<'a>(
    tapes: &WorkspaceTapes,
    sessions: &'a [ListedTape],
    search: &Search,
) -> Result<(Vec<(&'a ListedTape, SearchHit)>, usize)> {
    let progress = ProgressBar::new("searching", sessions.len(), &tapes.settings);
    let (mut hits, mut filtered) = (Vec::new(), 0);
    for session in sessions {
        progress.advance(session.label());
        let result = tapes.open_tape(&session.name).search(search).await?;
        hits.extend(result.hits.into_iter().map(|hit| (session, hit)));
        filtered += result.filtered;
    }
    // The sort is stable: entries with equal or unreadable dates keep the order of the tape.
    hits.sort_by_key(|(_, hit)| Reverse((hit.exact, hit.entry.timestamp())));
    hits.truncate(search.limit);
    Ok((hits, filtered))
}

fn format_hit(session: &ListedTape, hit: &SearchHit, style: ColorSupport) -> String {
    let entry = &hit.entry;
    let match_note = if hit.exact { "" } else { "  (near match)" };
    format!(
        "{} {} {}  {}{match_note}\n  {}\n",
        text::sanitize_line(session.label()),
        style.paint_dim(&format!("#{}", entry.id)),
        style.paint_title(entry),
        style.paint_dim(&text::entry_date(entry)),
        text::sanitize_line(&hit.snippet)
    )
}

fn hit_json(session: &ListedTape, hit: &SearchHit) -> String {
    let entry = &hit.entry;
    text::json_line(&json!({
        "tape": session.name.as_str(),
        "session_id": session.session_id(),
        "id": entry.id,
        "kind": entry.kind.as_str(),
        "date": entry.date,
        "exact": hit.exact,
        "snippet": hit.snippet,
    }))
}
