//! Moves media from entries to blobs and back.
//!
//! `payload.content` of a message keeps its text parts, in the format of the Python version. Every other part is stored
//! as a blob that contains the JSON of the part, so that it is restored exactly. `meta.media` lists, for each such part,
//! its blob and its original index in `payload.content`, and the type, size and name of the file if they are known.

use serde_json::{Map, Value};

use crate::{BlobId, BlobStore, Entry, EntryKind, Result, TapeError};

/// Key in the `meta` of a message with the list of its media.
pub(crate) const MEDIA_KEY: &str = "media";

/// Maximum characters of the name of a file.
const MAX_NAME_CHARS: usize = 100;

/// Moves the media of a message to blobs. Removes media from entries of other kinds, because events only repeat the
/// media of messages.
pub async fn detach_media(blobs: &dyn BlobStore, mut entry: Entry) -> Result<Entry> {
    if entry.kind != EntryKind::Message {
        remove_media(&mut entry);
        return Ok(entry);
    }
    let names = media_names(&entry);
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
        let blob = blobs.put(part.to_string().into_bytes()).await?;
        let mut item = Map::new();
        item.insert("index".to_owned(), index.into());
        let kind = part.get("type").cloned().unwrap_or(Value::Null);
        item.insert("type".to_owned(), kind);
        item.insert("blob".to_owned(), blob.to_string().into());
        if let Some((mime, data)) = inline_data(&part) {
            item.insert("mime_type".to_owned(), mime.into());
            item.insert("bytes".to_owned(), (data.len() / 4 * 3).into());
        }
        let name = names.iter().find(|(named, _)| *named == index);
        item.extend(name.map(|(_, name)| ("name".to_owned(), name.as_str().into())));
        media.push(Value::Object(item));
    }
    *parts = texts;
    Ok(entry.with_meta(MEDIA_KEY, media))
}

/// Sets the names of the files in a message: pairs of the index of a part in `payload.content` and its name.
#[must_use]
pub fn with_media_names(entry: Entry, names: impl IntoIterator<Item = (usize, String)>) -> Entry {
    let parts = entry.payload.get("content").and_then(Value::as_array);
    let is_media = |index: usize| {
        let part = parts.and_then(|parts| parts.get(index));
        part.is_some_and(|part| !is_text_part(part))
    };
    let names = names.into_iter().filter(|(index, _)| is_media(*index));
    let items = names.map(|(index, name)| {
        // The name is part of a line that the model reads.
        let is_plain = |char: &char| !char.is_control() && !matches!(char, '[' | ']');
        let name: String = name.chars().filter(is_plain).take(MAX_NAME_CHARS).collect();
        let item = [("index", index.into()), ("name", name.into())];
        Value::Object(crate::entry::json_object(item))
    });
    let items: Vec<Value> = items.collect();
    if items.is_empty() {
        return entry;
    }
    entry.with_meta(MEDIA_KEY, items)
}

/// Returns the names of the files in a message, with the index of their parts.
pub fn media_names(entry: &Entry) -> Vec<(usize, String)> {
    let items = entry.meta.get(MEDIA_KEY).and_then(Value::as_array);
    items.into_iter().flatten().filter_map(item_name).collect()
}

/// Undoes [`detach_media`]: inserts the media of a message into its `content` again, each at its original index. Skips
/// media that cannot be read.
pub async fn attach_media(blobs: &dyn BlobStore, entry: &Entry) -> Result<Entry> {
    let mut entry = entry.clone();
    let Some(Value::Array(media)) = entry.meta.get(MEDIA_KEY).cloned() else {
        return Ok(entry);
    };
    let Some(Value::Array(parts)) = entry.payload.get_mut("content") else {
        return Ok(entry);
    };
    let mut names = Vec::new();
    for item in media {
        if let Some(part) = load_part(blobs, &item).await {
            insert_part(parts, &item, part);
            names.extend(item_name(&item));
        }
    }
    entry.meta.shift_remove(MEDIA_KEY);
    Ok(with_media_names(entry, names))
}

/// Inserts a part at the index of an item of `meta.media`.
pub(crate) fn insert_part(parts: &mut Vec<Value>, item: &Value, part: Value) {
    let index = item_index(item).unwrap_or(usize::MAX);
    parts.insert(index.min(parts.len()), part);
}

fn item_name(item: &Value) -> Option<(usize, String)> {
    let name = item.get("name")?.as_str()?;
    Some((item_index(item)?, name.to_owned()))
}

fn item_index(item: &Value) -> Option<usize> {
    usize::try_from(item.get("index")?.as_u64()?).ok()
}

/// Loads the part of an item of `meta.media`. Returns `None` if it cannot be read.
pub(crate) async fn load_part(blobs: &dyn BlobStore, item: &Value) -> Option<Value> {
    let id = BlobId::parse(item.get("blob")?.as_str()?).ok()?;
    match blobs.get(&id).await {
        Ok(bytes) => serde_json::from_slice(&bytes).ok(),
        Err(TapeError::NotFound(_)) => None,
        Err(error) => {
            tracing::warn!(blob = %id, %error, "tape.media_unreadable");
            None
        }
    }
}

/// Returns the media type and the base64 data of a part, unless the part has the address of the file.
pub(crate) fn inline_data(part: &Value) -> Option<(String, &str)> {
    let kind = part.get("type")?.as_str()?;
    let content = part.get(kind)?;
    let text = |key: &str| content.get(key).and_then(Value::as_str);
    if let Some(data) = text("data") {
        return Some((format!("audio/{}", text("format").unwrap_or("wav")), data));
    }
    let url = content.as_str().or_else(|| text("url"));
    let url = url.or_else(|| text("file_data"))?;
    let (head, data) = url.strip_prefix("data:")?.split_once(',')?;
    let mime = head.split(';').next().unwrap_or_default();
    Some((mime.to_owned(), data))
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
