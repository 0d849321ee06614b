//! What an anchor takes along from before itself.

use serde_json::Value;

use crate::{Entry, EntryId, EntryKind, Result, Tape, codec};

/// The key of an anchor's state that names entries by id.
const CARRY_KEY: &str = "carry";

/// The ids an anchor carries. Anything but a list of whole numbers is somebody else's state and means nothing here.
pub(super) fn ids(anchor: &Entry) -> Option<Vec<EntryId>> {
    let list = anchor.payload.get("state")?.get(CARRY_KEY)?.as_array()?;
    list.iter()
        .map(|id| id.as_i64().map(EntryId::new))
        .collect()
}

/// The state as a model is shown it: the carried entries follow, so their numbers would say nothing.
pub(super) fn shown_state(anchor: &Entry) -> Value {
    let mut state = anchor.payload.get("state").cloned().unwrap_or(Value::Null);
    if ids(anchor).is_some()
        && let Some(map) = state.as_object_mut()
    {
        map.shift_remove(CARRY_KEY);
    }
    state
}

/// The carried entries, in tape order, as many as the limit allows.
pub(super) async fn carried(tape: &Tape, anchor: &Entry, limit: usize) -> Result<Vec<Entry>> {
    let mut ids = ids(anchor).unwrap_or_default();
    // Only what lies before: what follows the anchor is in the view anyway.
    ids.retain(|id| *id < anchor.id);
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let entries = tape.store().fetch(tape.name(), &ids).await?;
    Ok(within(entries, limit))
}

/// Keeps the first user message, which says what the turn is about, and then the latest entries that fit.
fn within(entries: Vec<Entry>, limit: usize) -> Vec<Entry> {
    let size = |entry: &Entry| codec::to_python_json(&entry.payload).len();
    let asks = |entry: &Entry| {
        entry.kind == EntryKind::Message
            && entry.payload.get("role").and_then(Value::as_str) == Some("user")
    };
    let first = entries.iter().position(asks);
    let mut left = limit.saturating_sub(first.and_then(|index| entries.get(index)).map_or(0, size));
    let fits = |entry: &Entry| {
        let rest = left.checked_sub(size(entry));
        left = rest.unwrap_or(0);
        rest.is_some()
    };
    let latest = entries
        .iter()
        .rev()
        .map(fits)
        .take_while(|fits| *fits)
        .count();
    let cut = entries.len() - latest;
    let kept = entries
        .into_iter()
        .enumerate()
        .filter(|(index, _)| *index >= cut || Some(*index) == first);
    kept.map(|(_, entry)| entry).collect()
}
