//! `tape.info`, `tape.search`, `tape.anchors`: looking back at the session.

use bub_kernel::{Result, StepRequest, ToolContext, tape_error, tool};
use bub_tape::{AnchorQuery, DateRange, EntryKind, Query, SEARCH_MARKER, Search, SearchHit};
use serde_json::json;

const MAX_SHOWN_ANCHORS: usize = 20;

/// Shows how long the session's tape is, where its last anchor stands, and how many tokens the last model call took.
#[tool(crate = bub_kernel, name = "tape.info", read_only)]
pub async fn tape_info(context: &ToolContext) -> Result<String> {
    let tape = context.tape();
    let info = tape.info().await?;
    let or_none = |value: Option<String>| value.unwrap_or_else(|| "None".to_owned());
    let lines = [
        ("name", tape.name().to_string()),
        ("entries", info.entries.to_string()),
        ("anchors", info.anchors.to_string()),
        ("last_anchor", or_none(info.last_anchor)),
        (
            "entries_since_last_anchor",
            info.entries_since_last_anchor.to_string(),
        ),
        (
            "last_token_usage",
            or_none(info.last_token_usage.map(|tokens| tokens.to_string())),
        ),
        (
            "last_token_cache_hit_rate",
            or_none(
                info.cache_hit_rate
                    .map(|rate| format!("{:.2}%", rate * 100.0)),
            ),
        ),
    ];
    Ok(lines
        .map(|(key, value)| format!("{key}: {value}"))
        .join("\n"))
}

/// Searches what was said and done in this session, also before the last anchor. Near matches count; the best and
/// latest come first, each with its date and the text around the match.
#[tool(crate = bub_kernel, name = "tape.search", read_only)]
pub async fn tape_search(
    context: &ToolContext,
    /// The text to look for, in any case.
    query: String,
    /// How many matches to show at most.
    #[default(20)]
    limit: u32,
    /// Only from this date on, as in 2026-01-31.
    start: Option<String>,
    /// Only up to this date, that day included.
    end: Option<String>,
    /// Which kinds of entries to look at: message, tool_result, tool_call, event, anchor, error, system.
    #[default(vec!["message".to_owned(), "tool_result".to_owned()])]
    kinds: Vec<String>,
) -> Result<String> {
    let kinds = kinds.iter().map(|kind| EntryKind::from(kind.trim()));
    let dates = DateRange {
        start: non_empty(start),
        end: non_empty(end),
    };
    let within = Query {
        dates,
        ..Query::new().kinds(kinds)
    };
    let search = Search::new(query).within(within).limit(limit as usize);
    let found = context.tape().search(&search).await?;
    let count = format!(
        "{SEARCH_MARKER}: {} matches ({} filtered)",
        found.hits.len(),
        found.filtered
    );
    let lines = found.hits.iter().map(line);
    Ok(std::iter::once(count)
        .chain(lines)
        .collect::<Vec<_>>()
        .join("\n"))
}

/// Starts the tape anew: everything before leaves your sight.
#[tool(crate = bub_kernel, name = "tape.reset")]
pub(crate) async fn tape_reset(
    context: &ToolContext,
    /// Whether the old content is kept in a file of its own.
    archive: Option<bool>,
) -> Result<String> {
    // A person who leaves it out wants it gone, as in the original; what a model forgets, people may want back.
    if let Some(requests) = &context.step_requests {
        requests.add(StepRequest::Reset {
            archive: archive.unwrap_or(true),
        });
        return Ok("the tape is reset with the end of this step".to_owned());
    }
    let archive = archive.unwrap_or(false);
    let report = context.tape().reset(archive).await.map_err(tape_error)?;
    Ok(report.archived.map_or_else(
        || "tape reset".to_owned(),
        |path| format!("tape reset; archived: {path}"),
    ))
}

/// Begins a new phase: everything before it leaves your sight, except for the summary and the message you are answering.
#[tool(crate = bub_kernel, name = "tape.handoff")]
pub(crate) async fn tape_handoff(
    context: &ToolContext,
    /// The name of the new anchor.
    #[default("handoff")]
    name: String,
    /// All that the next phase needs: goal, latest instruction, what is done, in progress and next, files.
    #[default("")]
    summary: String,
) -> Result<String> {
    let answer = format!("anchor added: {name}");
    if let Some(requests) = &context.step_requests {
        requests.add(StepRequest::HandOff { name, summary });
    } else {
        let summary = json!({"summary": summary});
        context
            .tape()
            .handoff(&name, Some(summary))
            .await
            .map_err(tape_error)?;
    }
    Ok(answer)
}

/// Lists the latest anchors of the session's tape: where its phases begin.
#[tool(crate = bub_kernel, name = "tape.anchors", read_only)]
pub async fn tape_anchors(context: &ToolContext) -> Result<String> {
    let marks = context
        .tape()
        .marks(AnchorQuery::Latest(MAX_SHOWN_ANCHORS))
        .await?;
    if marks.is_empty() {
        return Ok("(no anchors)".to_owned());
    }
    Ok(marks
        .iter()
        .map(|mark| format!("- {}", mark.name))
        .collect::<Vec<_>>()
        .join("\n"))
}

/// One match: the text around it, not the whole entry, which the next search would find again.
fn line(hit: &SearchHit) -> String {
    json!({"date": hit.entry.date, "content": hit.snippet, "id": hit.entry.id}).to_string()
}

/// Models fill in empty text for what they do not mean.
fn non_empty(date: Option<String>) -> Option<String> {
    date.map(|date| date.trim().to_owned())
        .filter(|date| !date.is_empty())
}
