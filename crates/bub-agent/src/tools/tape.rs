//! The tools `tape.info`, `tape.search`, `tape.reset`, `tape.handoff` and `tape.anchors`.

use bub_kernel::{Result, StepRequest, ToolContext, tape_error, tool};
use bub_tape::{
    AnchorQuery, DateRange, EntryKind, Query, SEARCH_MARKER, Search, SearchHit, handoff_entries,
};
use serde_json::json;

use crate::agent_loop::add_todo;

const MAX_SHOWN_ANCHORS: usize = 20;

/// Show tape size, last anchor, and last token usage
#[tool(crate = bub_kernel, name = "tape.info", read_only)]
pub async fn tape_info(context: &ToolContext) -> Result<String> {
    let tape = context.tape();
    let info = tape.info().await?;
    let or_none = |value: Option<String>| value.unwrap_or_else(|| "None".to_owned());
    let tokens = info.last_token_usage.map(|tokens| tokens.to_string());
    let cache_hits = info
        .cache_hit_rate
        .map(|rate| format!("{:.2}%", rate * 100.0));
    Ok(format!(
        "name: {}\nentries: {}\nanchors: {}\nlast_anchor: {}\nentries_since_last_anchor: {}\n\
         last_token_usage: {}\nlast_token_cache_hit_rate: {}",
        tape.name(),
        info.entries,
        info.anchors,
        or_none(info.last_anchor),
        info.entries_since_last_anchor,
        or_none(tokens),
        or_none(cache_hits),
    ))
}

/// Search this session, including entries before the last anchor. Similar words match too. The best and latest matches
/// come first, each with its date and the surrounding text.
#[tool(crate = bub_kernel, name = "tape.search", read_only)]
pub async fn tape_search(
    context: &ToolContext,
    /// Text to search; case is ignored
    query: String,
    /// Maximum number of matches
    #[default(20)]
    limit: u32,
    /// Only entries since this date, such as 2026-01-31
    start: Option<String>,
    /// Only entries up to and including this date
    end: Option<String>,
    /// Kinds of entries to search: message, tool_result, tool_call, event, anchor, error, system
    #[default(vec!["message".to_owned(), "tool_result".to_owned()])]
    kinds: Vec<String>,
) -> Result<String> {
    let kinds = kinds.iter().map(|kind| EntryKind::from(kind.trim()));
    let dates = DateRange {
        start: non_empty_date(start),
        end: non_empty_date(end),
    };
    let filter = Query {
        dates,
        ..Query::new().kinds(kinds)
    };
    let search = Search::new(query).within(filter).limit(limit as usize);
    let result = context.tape().search(&search).await?;
    for hit in &result.hits {
        context.turn.add_entry_provenance(&hit.entry);
    }
    let (hits, filtered) = (result.hits.len(), result.filtered);
    let mut lines = vec![format!(
        "{SEARCH_MARKER}: {hits} matches ({filtered} filtered)"
    )];
    lines.extend(result.hits.iter().map(format_hit));
    Ok(lines.join("\n"))
}

/// Clear the tape and start with an empty context; archive=true keeps a copy
#[tool(crate = bub_kernel, name = "tape.reset")]
pub(crate) async fn tape_reset(
    context: &ToolContext,
    /// Whether to keep the old content in a separate file
    archive: Option<bool>,
) -> Result<String> {
    // By default, a user's reset discards the tape, as in the Python version. A model's reset archives it, because
    // users may want it back.
    if let Some(requests) = &context.step_requests {
        requests.add(StepRequest::Reset {
            archive: archive.unwrap_or(true),
        });
        return Ok("the tape will be reset at the end of this step".to_owned());
    }
    let archive = archive.unwrap_or(false);
    let report = context.tape().reset(archive).await.map_err(tape_error)?;
    Ok(report.archived.map_or_else(
        || "tape reset".to_owned(),
        |path| format!("tape reset; archived: {path}"),
    ))
}

/// Add an anchor; the model then sees its summary, the current message, and later entries
#[tool(crate = bub_kernel, name = "tape.handoff")]
pub(crate) async fn tape_handoff(
    context: &ToolContext,
    /// Name of the new anchor
    #[default("handoff")]
    name: String,
    /// Everything needed after the anchor: goal, latest instruction, what is done, in progress and next, files
    #[default("")]
    summary: String,
) -> Result<String> {
    let answer = format!("anchor added: {name}");
    if let Some(requests) = &context.step_requests {
        requests.add(StepRequest::HandOff { name, summary });
    } else {
        let tape = context.turn.tape();
        let mut state = json!({"summary": summary});
        add_todo(tape, &mut state).await?;
        let run = [("run_id".to_owned(), tape.run_id().into())];
        let entries = handoff_entries(&name, Some(state), run.into_iter().collect());
        tape.append(entries).await?;
    }
    Ok(answer)
}

/// List the most recent anchors of this session
#[tool(crate = bub_kernel, name = "tape.anchors", read_only)]
pub async fn tape_anchors(context: &ToolContext) -> Result<String> {
    let latest = AnchorQuery::Latest(MAX_SHOWN_ANCHORS);
    let marks = context.tape().anchor_marks(latest).await?;
    if marks.is_empty() {
        return Ok("(no anchors)".to_owned());
    }
    let lines: Vec<_> = marks
        .iter()
        .map(|mark| format!("- {}", mark.name))
        .collect();
    Ok(lines.join("\n"))
}

/// Formats one match as a JSON line: the date and the id of the entry, and the text around the match.
fn format_hit(hit: &SearchHit) -> String {
    json!({"date": hit.entry.date, "content": hit.snippet, "id": hit.entry.id}).to_string()
}

/// Returns the date, or `None` if it is empty. Models pass empty strings for arguments that they do not need.
fn non_empty_date(date: Option<String>) -> Option<String> {
    date.map(|date| date.trim().to_owned())
        .filter(|date| !date.is_empty())
}
