//! The tools `tape.info`, `tape.search`, `tape.reset`, `tape.handoff` and `tape.anchors`.

use bub_kernel::{Result, StepRequest, ToolContext, tape_error, tool};
use bub_tape::{
    AnchorQuery, DateRange, EntryKind, Query, SEARCH_MARKER, Search, SearchHit, handoff_entries,
};
use serde_json::{Map, Value, json};

use super::{object_schema, titled_schema};
use crate::agent_loop::add_todo;

const MAX_SHOWN_ANCHORS: usize = 20;

/// Show tape size, last anchor, and last token usage
#[tool(crate = bub_kernel, name = "tape.info", read_only, render = render_info, output = info_schema)]
pub async fn tape_info(context: &ToolContext) -> Result<Value> {
    let tape = context.tape();
    let info = tape.info().await?;
    Ok(json!({
        "name": tape.name().to_string(),
        "entries": info.entries,
        "anchors": info.anchors,
        "last_anchor": info.last_anchor,
        "entries_since_last_anchor": info.entries_since_last_anchor,
        "last_token_usage": info.last_token_usage,
        "last_token_cache_hit_rate": info.cache_hit_rate,
    }))
}

/// Returns one line per field.
fn render_info(info: &Value) -> Option<String> {
    let text = |(name, value): (&String, &Value)| {
        let value = match (value, value.as_f64()) {
            (Value::Null, _) => "None".to_owned(),
            (Value::String(text), _) => text.clone(),
            (_, Some(rate)) if name == "last_token_cache_hit_rate" => {
                format!("{:.2}%", rate * 100.0)
            }
            (value, _) => value.to_string(),
        };
        format!("{name}: {value}")
    };
    let lines: Vec<String> = info.as_object()?.iter().map(text).collect();
    Some(lines.join("\n"))
}

fn info_schema() -> Value {
    let (text, number) = (json!({"type": "string"}), json!({"type": "integer"}));
    let optional = |ty: &str| json!({"type": [ty, "null"]});
    object_schema(&json!({
        "name": text,
        "entries": number,
        "anchors": number,
        "last_anchor": optional("string"),
        "entries_since_last_anchor": number,
        "last_token_usage": optional("integer"),
        "last_token_cache_hit_rate": optional("number"),
    }))
}

/// Search this session, also before the last anchor; "phrase", -word, from:name. Open an id with `tape_read`
#[tool(crate = bub_kernel, name = "tape.search", read_only, render = render_search, output = search_schema)]
pub async fn tape_search(
    context: &ToolContext,
    query: String,
    #[default(20)] limit: u32,
    /// First date, such as 2026-01-31
    start: Option<String>,
    /// Last date
    end: Option<String>,
    /// Also tool_call, event, anchor, error, system
    #[default(vec!["message".to_owned(), "tool_result".to_owned()])]
    kinds: Vec<String>,
) -> Result<Value> {
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
    let search = search.outside_of_turn(context.tape().name(), context.run_id().as_str());
    let result = context.tape().search(&search).await?;
    for hit in &result.hits {
        context.turn.add_entry_provenance(&hit.entry);
    }
    let matches: Vec<Value> = result.hits.iter().map(hit_value).collect();
    let value = json!({"matches": matches, "filtered": result.filtered});
    Ok(with_unindexed(value, result.unindexed_bytes))
}

/// Adds the number of bytes that were not searched, if there are any.
pub(super) fn with_unindexed(mut value: Value, bytes: u64) -> Value {
    if let Some(fields) = value.as_object_mut().filter(|_| bytes > 0) {
        fields.insert("unindexed_bytes".to_owned(), bytes.into());
    }
    value
}

/// Returns the first line of the output of a search.
pub(super) fn render_counts(count: usize, result: &Value) -> Option<String> {
    let filtered = result.get("filtered")?;
    let line = format!("{SEARCH_MARKER}: {count} matches ({filtered} filtered)");
    Some(match result.get("unindexed_bytes") {
        Some(bytes) => {
            format!("{line}; {bytes} bytes are not indexed yet, search again to include more")
        }
        None => line,
    })
}

/// Returns the counts, and one line per match.
fn render_search(result: &Value) -> Option<String> {
    let matches = result.get("matches")?.as_array()?;
    let mut lines = vec![render_counts(matches.len(), result)?];
    lines.extend(matches.iter().map(Value::to_string));
    Some(lines.join("\n"))
}

fn search_schema() -> Value {
    let (text, number) = (json!({"type": "string"}), json!({"type": "integer"}));
    let hit = json!({"date": text, "content": text, "id": number});
    let hit = titled_schema("TapeSearchMatch", &hit);
    let matches = json!({"type": "array", "items": hit});
    object_schema(&json!({"matches": matches, "filtered": number}))
}

/// Clear the tape and start with an empty context; archive=true keeps a copy
#[tool(crate = bub_kernel, name = "tape.reset", render = render_message, output = message_schema)]
pub(crate) async fn tape_reset(context: &ToolContext, archive: Option<bool>) -> Result<Value> {
    // By default, a user's reset discards the tape, as in the Python version. A model's reset archives it, because
    // users may want it back.
    if let Some(requests) = &context.step_requests {
        requests.add(StepRequest::Reset {
            archive: archive.unwrap_or(true),
        });
        return Ok(json!({"message": "the tape will be reset at the end of this step"}));
    }
    let archive = archive.unwrap_or(false);
    let report = context.tape().reset(archive).await.map_err(tape_error)?;
    let message = report
        .archived
        .map_or_else(|| "ok".to_owned(), |path| format!("Archived: {path}"));
    Ok(json!({"message": message}))
}

fn render_message(result: &Value) -> Option<String> {
    Some(result.get("message")?.as_str()?.to_owned())
}

fn message_schema() -> Value {
    object_schema(&json!({"message": {"type": "string"}}))
}

/// Shorten the context: keep only this summary, the latest message, and later entries
#[tool(crate = bub_kernel, name = "tape.handoff", render = render_handoff, output = handoff_schema)]
pub(crate) async fn tape_handoff(
    context: &ToolContext,
    #[default("handoff")] name: String,
    /// Lines `Goal:`, `Decisions:`, `Done:`, `In progress:`, `Next:`, `Open questions:`
    #[default("")]
    summary: String,
) -> Result<Value> {
    let answer = json!({"anchor": name});
    if let Some(requests) = &context.step_requests {
        requests.add(StepRequest::HandOff { name, summary });
    } else {
        hand_off(context, &name, &summary).await?;
    }
    Ok(answer)
}

/// Adds an anchor outside of an agent loop, with the todo list of the session.
async fn hand_off(context: &ToolContext, name: &str, summary: &str) -> Result<()> {
    let tape = context.turn.tape();
    let mut state = json!({"summary": summary});
    add_todo(tape, &mut state).await?;
    let run = [("run_id".to_owned(), tape.run_id().into())];
    let entries = handoff_entries(name, Some(state), run.into_iter().collect());
    tape.append(entries).await?;
    Ok(())
}

fn render_handoff(result: &Value) -> Option<String> {
    Some(format!("anchor added: {}", result.get("anchor")?.as_str()?))
}

fn handoff_schema() -> Value {
    object_schema(&json!({"anchor": {"type": "string"}}))
}

/// List the most recent anchors of this session
#[tool(crate = bub_kernel, name = "tape.anchors", read_only, render = render_anchors, output = anchors_schema)]
pub async fn tape_anchors(context: &ToolContext) -> Result<Value> {
    let latest = AnchorQuery::Latest(MAX_SHOWN_ANCHORS);
    let marks = context.tape().anchor_marks(latest).await?;
    let names: Vec<_> = marks.iter().map(|mark| mark.name.as_str()).collect();
    Ok(json!({"anchors": names}))
}

fn render_anchors(result: &Value) -> Option<String> {
    let names = result.get("anchors")?.as_array()?.iter();
    let lines: Vec<_> = names.filter_map(Value::as_str).collect();
    Some(match lines.as_slice() {
        [] => "(no anchors)".to_owned(),
        lines => format!("- {}", lines.join("\n- ")),
    })
}

fn anchors_schema() -> Value {
    object_schema(&json!({"anchors": {"type": "array", "items": {"type": "string"}}}))
}

/// Returns one match: the date and the id of the entry, the text around the match, the author and the phase.
pub(super) fn hit_value(hit: &SearchHit) -> Value {
    let entry = &hit.entry;
    let mut value = Map::from_iter([
        ("date".to_owned(), json!(entry.date)),
        ("content".to_owned(), json!(hit.snippet)),
        ("id".to_owned(), json!(entry.id)),
    ]);
    for (key, text) in [("from", &hit.author), ("phase", &hit.phase)] {
        if let Some(text) = text {
            value.insert(key.to_owned(), json!(text));
        }
    }
    value.into()
}

/// Returns the date, or `None` if it is empty. Models pass empty strings for arguments that they do not need.
fn non_empty_date(date: Option<String>) -> Option<String> {
    date.map(|date| date.trim().to_owned())
        .filter(|date| !date.is_empty())
}
