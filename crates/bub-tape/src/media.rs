//! Moves media from entries to blobs and back.
//!
//! `payload.content` of a message keeps its text parts, in the format of the Python version. Every other part is stored
//! as a blob that contains the JSON of the part, so that it is restored exactly. `meta.media` lists the blob of each
//! such part and the part's original index in `payload.content`.

use serde_json::{Value, json};

use crate::{BlobId, BlobStore, Entry, EntryId, EntryKind, Result, TapeError};

/// Moves the media of a message to blobs. Removes media from entries of other kinds, because events only repeat the
/// media of messages.
pub async fn detach_media(blobs: &dyn BlobStore, mut entry: Entry) -> Result<Entry> {
    if entry.kind != EntryKind::Message {
        remove_media(&mut entry);
        return Ok(entry);
    }
    let Some(Value::Array(parts)) = entry.payload.get_mut("content") else {
        return Ok(entry);
    };
    if parts.iter().all(is_text_part) {
        return Ok(entry);
    }
    let (mut texts, mut media) = (Vec::new(), Vec::new());
    for (index, part) in std::mem::take(parts).into_iter().enumerate() {
        if is_text_part(&part) {
            texts.push(part);
            continue;
        }
        let kind = part.get("type").cloned().unwrap_or(Value::Null);
        let blob = blobs.put(part.to_string().into_bytes()).await?;
        media.push(json!({"index": index, "type": kind, "blob": blob.to_string()}));
    }
    *parts = texts;
    Ok(entry.with_meta("media", media))
}

/// Inserts the media of a message into its `content` again, each at its original index. Skips missing blobs.
pub async fn attach_media(blobs: &dyn BlobStore, entry: &Entry) -> Result<Entry> {
    let mut entry = entry.clone();
    let Some(Value::Array(media)) = entry.meta.get("media").cloned() else {
        return Ok(entry);
    };
    let Some(Value::Array(parts)) = entry.payload.get_mut("content") else {
        return Ok(entry);
    };
    for item in media {
        let Some(part) = load_part(blobs, &item).await? else {
            continue;
        };
        let index = item.get("index").and_then(Value::as_u64);
        let index = index.and_then(|index| usize::try_from(index).ok());
        parts.insert(index.unwrap_or(usize::MAX).min(parts.len()), part);
    }
    Ok(entry)
}

/// Returns the entry for a view: with its media if it belongs to the running turn, which starts with `turn`, and without
/// them otherwise.
pub(crate) async fn with_turn_media(
    blobs: &dyn BlobStore,
    entry: Entry,
    turn: Option<EntryId>,
) -> Result<Entry> {
    let media = entry.meta.get("media");
    let Some(media) = media.filter(|_| entry.kind == EntryKind::Message) else {
        return Ok(entry);
    };
    let media = media.as_array().into_iter().flatten();
    let kinds = media.map(|item| item.get("type").and_then(Value::as_str).unwrap_or("media"));
    let kinds = kinds.collect::<Vec<_>>().join(", ");
    let mut entry = match turn {
        Some(first) if entry.id >= first => attach_media(blobs, &entry).await?,
        _ => entry,
    };
    // Providers reject messages without content.
    if let Some(content) = entry.payload.get_mut("content")
        && content.as_array().is_some_and(Vec::is_empty)
    {
        *content = format!("[not shown again: {kinds}]").into();
    }
    Ok(entry)
}

async fn load_part(blobs: &dyn BlobStore, item: &Value) -> Result<Option<Value>> {
    let id = item.get("blob").and_then(Value::as_str);
    let Some(id) = id.and_then(|id| BlobId::parse(id).ok()) else {
        return Ok(None);
    };
    match blobs.get(&id).await {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(TapeError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn remove_media(entry: &mut Entry) {
    for key in ["content", "prompt"] {
        entry.payload.get_mut(key).map(retain_text_parts);
        let data = entry.payload.get_mut("data");
        data.and_then(|data| data.get_mut(key))
            .map(retain_text_parts);
    }
}

fn retain_text_parts(value: &mut Value) {
    if let Value::Array(parts) = value
        && parts.iter().any(|part| part.get("type").is_some())
    {
        parts.retain(is_text_part);
    }
}

fn is_text_part(part: &Value) -> bool {
    part.get("type").and_then(Value::as_str) == Some("text") || part.is_string()
}
