//! `bub tape search`: searches one tape, a workspace, or all workspaces.

use std::process::ExitCode;

use bub_tape::{
    Query, Result, Search, SearchHit, SearchResults, TapeError, TapeListFilter, TapeName,
};
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
/// Lists the best matches first, grouped by session. Any word counts, rare words more. `"a phrase"` must occur, and
/// `-word` must not occur. `kind:`, `from:` (role or name), `before:` and `after:` (dates) restrict the entries. Without
/// `--kinds`, searches messages and tool results.
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
    let names = if let Some(tape) = &args.tape {
        vec![tapes.find_tape(tape).await?.name]
    } else {
        let mut names = tapes.store.list(TapeListFilter::Sessions).await?;
        names.retain(|name| args.all_workspaces || tapes.is_in_workspace(name));
        names
    };
    let mut results = search.run(&*tapes.store, &names).await?;
    if results.unindexed_bytes > 0 {
        results = finish_index(tapes, &search, &names, results).await?;
    }
    let filtered = results.filtered;
    let hits = group_by_session(tapes, results.hits).await?;
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

/// Repeats a search until all lines are indexed.
async fn finish_index(
    tapes: &WorkspaceTapes,
    search: &Search,
    names: &[TapeName],
    mut results: SearchResults,
) -> Result<SearchResults> {
    let to_megabytes =
        |bytes: u64| usize::try_from(bytes.div_ceil(1_000_000)).unwrap_or(usize::MAX);
    let total = to_megabytes(results.unindexed_bytes);
    let progress = ProgressBar::new("indexing MB", total, &tapes.settings);
    while results.unindexed_bytes > 0 {
        let left = results.unindexed_bytes;
        progress.set(total.saturating_sub(to_megabytes(left)));
        results = search.run(&*tapes.store, names).await?;
        if results.unindexed_bytes >= left {
            drop(progress);
            let megabytes = to_megabytes(left);
            notice!(
                "{megabytes} MB are not searched, because they are written faster than they are indexed"
            );
            break;
        }
    }
    Ok(results)
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

/// Returns the matches with their sessions. Matches of a session follow its best match.
async fn group_by_session(
    tapes: &WorkspaceTapes,
    hits: Vec<SearchHit>,
) -> Result<Vec<(ListedTape, SearchHit)>> {
    let mut sessions: Vec<(ListedTape, Vec<SearchHit>)> = Vec::new();
    for hit in hits {
        let mut known = sessions.iter_mut();
        if let Some((_, hits)) = known.find(|(session, _)| session.name == hit.tape) {
            hits.push(hit);
        } else {
            let (name, summary) = (hit.tape.clone(), tapes.store.summary(&hit.tape).await?);
            sessions.push((ListedTape { name, summary }, vec![hit]));
        }
    }
    let hits = sessions
        .into_iter()
        .flat_map(|(session, hits)| hits.into_iter().map(move |hit| (session.clone(), hit)));
    Ok(hits.collect())
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
        "from": hit.author,
        "phase": hit.phase,
    }))
}
