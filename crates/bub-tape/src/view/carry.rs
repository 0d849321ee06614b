//! Carried entries: entries before an anchor that its view includes, because the anchor's state lists their ids.

use serde_json::Value;

use crate::{Entry, EntryId, EntryKind, Result, Tape, codec};

/// Key in an anchor's state with the ids of the carried entries.
const CARRY_KEY: &str = "carry";

/// Returns the ids of the entries that an anchor carries. Returns `None` if its state has no list of integers under the
/// key `carry`. Another program can use this key for other data.
pub(super) fn carried_ids(anchor: &Entry) -> Option<Vec<EntryId>> {
    let list = anchor.payload.get("state")?.get(CARRY_KEY)?.as_array()?;
    list.iter()
        .map(|id| id.as_i64().map(EntryId::new))
        .collect()
}

/// Returns the anchor's state as the model sees it, without the key `carry`. The model does not need the ids, because
/// the view contains the carried entries after the anchor.
pub(super) fn visible_state(anchor: &Entry) -> Value {
    let mut state = anchor.payload.get("state").cloned().unwrap_or(Value::Null);
    if carried_ids(anchor).is_some()
        && let Some(map) = state.as_object_mut()
    {
        map.shift_remove(CARRY_KEY);
    }
    state
}

/// Returns the carried entries in tape order. `limit` is their maximum total size in bytes.
pub(super) async fn fetch_carried_entries(
    tape: &Tape,
    anchor: &Entry,
    limit: usize,
) -> Result<Vec<Entry>> {
    let mut ids = carried_ids(anchor).unwrap_or_default();
    // Entries after the anchor are part of the view anyway.
    ids.retain(|id| *id < anchor.id);
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let entries = tape.store().fetch(tape.name(), &ids).await?;
    Ok(limit_size(entries, limit))
}

/// Returns the first user message, which is the prompt of the turn, and as many of the latest entries as fit into
/// `limit` bytes.
fn limit_size(entries: Vec<Entry>, limit: usize) -> Vec<Entry> {
    let size = |entry: &Entry| codec::to_python_json(&entry.payload).len();
    let is_user_message = |entry: &Entry| {
        entry.kind == EntryKind::Message
            && entry.payload.get("role").and_then(Value::as_str) == Some("user")
    };
    let first = entries.iter().position(is_user_message);
    let first_size = first.and_then(|index| entries.get(index)).map_or(0, size);
    let mut remaining = Some(limit.saturating_sub(first_size));
    let mut kept_entries = Vec::new();
    for (index, entry) in entries.into_iter().enumerate().rev() {
        remaining = remaining.and_then(|bytes| bytes.checked_sub(size(&entry)));
        if remaining.is_some() || Some(index) == first {
            kept_entries.push(entry);
        }
    }
    kept_entries.reverse();
    kept_entries
}
