//! The tools `tape.read` and `memory.search`.

use std::sync::Arc;

use bub_kernel::{Error, Result, Role, ToolContext, tape_error, tool, tools};
use bub_tape::{
    Entry, EntryId, EntryKind, SEARCH_MARKER, Search, SearchHit, TapeListFilter, TapeName, codec,
    message_text,
};
use serde_json::{Value, json};

use super::{
    object_schema,
    tape::{hit_value, render_counts, with_unindexed},
    titled_schema,
};
use crate::{agent::Agent, sessions, truncate};

/// Maximum number of entries that are shown before and after an entry.
const MAX_AROUND: u32 = 50;
/// Number of ids to read for each entry that is shown. Most entries are events, which are not shown.
const IDS_PER_SHOWN_ENTRY: i64 = 8;
/// Maximum length of a shown entry in characters.
const MAX_ENTRY_CHARS: usize = 2_000;

/// Show the entries around an entry id
#[tool(crate = bub_kernel, name = "tape.read", read_only, render = render_entries, output = entries_schema)]
pub async fn tape_read(context: &ToolContext, id: i64, #[default(3)] around: u32) -> Result<Value> {
    let tape = context.tape();
    let around = around.min(MAX_AROUND) as usize;
    let distance = i64::try_from(around).unwrap_or(0).saturating_add(1) * IDS_PER_SHOWN_ENTRY;
    let ids = id.saturating_sub(distance).max(1)..=id.saturating_add(distance);
    let ids: Vec<EntryId> = ids.map(EntryId::new).collect();
    let entries = tape
        .store()
        .fetch(tape.name(), &ids)
        .await
        .map_err(tape_error)?;
    let is_shown = |entry: &Entry| entry.id.get() == id || is_conversation(&entry.kind);
    let entries: Vec<Entry> = entries.into_iter().filter(is_shown).collect();
    let index = entries.iter().position(|entry| entry.id.get() == id);
    let index = index.ok_or_else(|| {
        Error::not_found(format!(
            "unknown entry `{id}`; pass an id from `tape.search`"
        ))
    })?;
    let shown = entries.iter().skip(index.saturating_sub(around));
    let shown = shown.take(around + 1 + index.min(around));
    let mut lines = Vec::new();
    for entry in shown {
        context.turn.add_entry_provenance(entry);
        let (author, text) = entry_text(entry);
        let text = truncate(&text, MAX_ENTRY_CHARS);
        lines.push(json!({"id": entry.id, "date": entry.date, "from": author, "content": text}));
    }
    Ok(json!({"entries": lines}))
}

fn is_conversation(kind: &EntryKind) -> bool {
    matches!(
        kind,
        EntryKind::Message | EntryKind::ToolCall | EntryKind::ToolResult | EntryKind::Anchor
    )
}

/// Returns the role of a message or the kind of another entry, and the text.
fn entry_text(entry: &Entry) -> (String, String) {
    match message_text(&entry.payload).filter(|_| entry.kind == EntryKind::Message) {
        Some((role, text)) => (role.to_owned(), text.to_owned()),
        None => (
            entry.kind.to_string(),
            codec::to_python_json(&entry.payload),
        ),
    }
}

/// Returns the marker, so that a search does not find the output, and one line per entry.
fn render_entries(result: &Value) -> Option<String> {
    let entries = result.get("entries")?.as_array()?;
    let mut lines = vec![format!("{SEARCH_MARKER}: {} entries", entries.len())];
    lines.extend(entries.iter().map(Value::to_string));
    Some(lines.join("\n"))
}

fn entries_schema() -> Value {
    let (text, number) = (json!({"type": "string"}), json!({"type": "integer"}));
    let entry = json!({"id": number, "date": text, "from": text, "content": text});
    let entry = titled_schema("TapeEntry", &entry);
    object_schema(&json!({"entries": {"type": "array", "items": entry}}))
}

/// Tools that search more than the current session.
pub(crate) struct MemoryTools {
    pub(crate) agent: Arc<Agent>,
}

#[tools(crate = bub_kernel)]
impl MemoryTools {
    /// Search all sessions
    #[tool(name = "memory.search", read_only, render = render_sessions, output = sessions_schema)]
    async fn memory_search(
        &self,
        context: &ToolContext,
        query: String,
        #[default(10)] limit: u32,
    ) -> Result<Value> {
        let tapes = self.visible_tapes(context).await?;
        let store = context.tape().store();
        let search = Search::new(query).limit(limit as usize);
        let search = search.outside_of_turn(context.tape().name(), context.run_id().as_str());
        let results = search.run(&**store, &tapes).await.map_err(tape_error)?;
        let mut sessions: Vec<(TapeName, Vec<Value>)> = Vec::new();
        for hit in &results.hits {
            context.turn.add_entry_provenance(&hit.entry);
            add_to_session(&mut sessions, hit);
        }
        let mut groups = Vec::new();
        for (tape, matches) in sessions {
            let session = store
                .summary(&tape)
                .await
                .ok()
                .and_then(|summary| summary.session);
            let session = session.map_or(tape.to_string(), |session| session.session_id);
            groups.push(json!({"session": session, "matches": matches}));
        }
        let value = json!({"sessions": groups, "filtered": results.filtered});
        Ok(with_unindexed(value, results.unindexed_bytes))
    }
}

impl MemoryTools {
    /// Returns the tapes that the sender may search: all tapes for an owner, and the sessions of the current chat for
    /// others. The role is lower if the turn contains text of others.
    async fn visible_tapes(&self, context: &ToolContext) -> Result<Vec<TapeName>> {
        let turn = &context.turn;
        let store = context.tape().store();
        let names = store
            .list(TapeListFilter::Sessions)
            .await
            .map_err(tape_error)?;
        let sender = self.agent.policy.effective_sender(turn, context.caller);
        if sender.role == Role::Owner {
            return Ok(names);
        }
        let chat = sessions::session_chat_id(turn.session_id());
        let mut visible = Vec::new();
        for name in names {
            // An error would tell the sender about a tape of another chat.
            let session = store
                .summary(&name)
                .await
                .ok()
                .and_then(|summary| summary.session);
            let is_visible = session.is_some_and(|session| {
                session.workspace.as_deref() == Some(turn.framework().workspace_text())
                    && sessions::session_chat_id(&session.session_id) == chat
                    // A tape could name the session of another chat.
                    && TapeName::for_session(turn.framework().workspace_text(), &session.session_id) == name
            });
            if is_visible {
                visible.push(name);
            }
        }
        Ok(visible)
    }
}

/// Adds a match to the group of its session. The groups are in the order of their best matches.
fn add_to_session(sessions: &mut Vec<(TapeName, Vec<Value>)>, hit: &SearchHit) {
    match sessions.iter_mut().find(|(tape, _)| *tape == hit.tape) {
        Some((_, matches)) => matches.push(hit_value(hit)),
        None => sessions.push((hit.tape.clone(), vec![hit_value(hit)])),
    }
}

/// Returns the counts, then for each session its id and one line per match.
fn render_sessions(result: &Value) -> Option<String> {
    let sessions = result.get("sessions")?.as_array()?;
    let matches = |session: &Value| session.get("matches")?.as_array().cloned();
    let count: usize = sessions
        .iter()
        .filter_map(matches)
        .map(|matches| matches.len())
        .sum();
    let mut lines = vec![render_counts(count, result)?];
    for session in sessions {
        lines.push(session.get("session")?.as_str()?.to_owned());
        lines.extend(matches(session)?.iter().map(Value::to_string));
    }
    Some(lines.join("\n"))
}

fn sessions_schema() -> Value {
    let (text, number) = (json!({"type": "string"}), json!({"type": "integer"}));
    let matches = json!({"type": "array", "items": {"type": "object"}});
    let session = titled_schema(
        "SessionMatches",
        &json!({"session": text, "matches": matches}),
    );
    let sessions = json!({"type": "array", "items": session});
    object_schema(&json!({"sessions": sessions, "filtered": number}))
}
