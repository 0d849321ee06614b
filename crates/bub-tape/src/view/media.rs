//! Media in a view. They are included during their own turn and omitted in later turns.

use serde_json::Value;

use crate::{BlobStore, Entry, EntryId, EntryKind, Result, media};

/// Returns the entry with its media if it belongs to the running turn, and without them otherwise.
pub(super) async fn with_turn_media(
    blobs: &dyn BlobStore,
    entry: Entry,
    turn: Option<EntryId>,
) -> Result<Entry> {
    if entry.kind != EntryKind::Message || !entry.meta.contains_key("media") {
        return Ok(entry);
    }
    let mut entry = match turn {
        Some(first) if entry.id >= first => media::attach_media(blobs, &entry).await?,
        _ => entry,
    };
    // Providers reject messages without content.
    if entry
        .payload
        .get("content")
        .and_then(Value::as_array)
        .is_some_and(Vec::is_empty)
    {
        let note = omission_note(&entry);
        entry.payload.insert("content".to_owned(), note.into());
    }
    Ok(entry)
}

fn omission_note(entry: &Entry) -> String {
    let media = entry
        .meta
        .get("media")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    let kinds = media
        .iter()
        .map(|item| item.get("type").and_then(Value::as_str).unwrap_or("media"));
    format!(
        "[not shown again: {}]",
        kinds.collect::<Vec<_>>().join(", ")
    )
}
