//! Media in views: images, audio and videos of messages.
//!
//! A view shows the media of the running turn, and those of earlier turns within a limit. A text marker replaces the
//! others. What is shown depends only on the entries, so the messages of a conversation stay equal from one model call
//! to the next, and providers can cache them. If the limit is exceeded, the oldest media are dropped until half of the
//! limit is used, so that the messages change rarely.

use std::collections::{HashSet, VecDeque};

use serde_json::{Value, json};

use super::ViewOptions;
use crate::{BlobStore, Entry, EntryId, EntryKind, media};

/// Assumed size of a file whose entry does not have it, because an earlier version recorded it.
const UNKNOWN_BYTES: u64 = 1_000_000;

/// How many media of earlier turns a view includes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediaLimit {
    /// Maximum number of media.
    pub items: usize,
    /// Maximum total size of the files in bytes.
    pub bytes: u64,
}

impl MediaLimit {
    /// No media of earlier turns.
    pub const NONE: Self = Self { items: 0, bytes: 0 };

    const fn is_exceeded_by(self, items: usize, bytes: u64) -> bool {
        items > self.items || bytes > self.bytes
    }

    const fn half(self) -> Self {
        Self {
            items: self.items / 2,
            bytes: self.bytes / 2,
        }
    }
}

/// At most 20 media with 12 MB. As base64 they have 16 MB, which fits the requests of all known providers.
impl Default for MediaLimit {
    fn default() -> Self {
        Self {
            items: 20,
            bytes: 12_000_000,
        }
    }
}

/// Inserts the media of messages, or markers in their place. `origin` is the anchor that the view starts with. Returns
/// whether media of earlier turns are shown.
pub(super) async fn insert_media(
    blobs: &dyn BlobStore,
    entries: &mut [Entry],
    origin: Option<EntryId>,
    options: &ViewOptions,
) -> bool {
    if !entries.iter().any(has_media) {
        return false;
    }
    let turn = RunningTurn::new(entries, options.turn_start);
    let kept = kept_media(entries, &turn, origin, options.media);
    for (position, entry) in entries.iter_mut().enumerate() {
        if !has_media(entry) {
            continue;
        }
        let is_running = turn.contains(entry);
        let items = media_items(entry).to_vec();
        let Some(Value::Array(parts)) = entry.payload.get_mut("content") else {
            continue;
        };
        for (number, item) in items.iter().enumerate() {
            let is_shown = is_running || kept.contains(&(position, number));
            let part = if is_shown {
                media::load_part(blobs, item).await
            } else {
                None
            };
            // An address can expire, and a provider that cannot load it rejects the request.
            let part = part.filter(|part| is_running || media::inline_data(part).is_some());
            media::insert_part(parts, item, part.unwrap_or_else(|| marker_part(item)));
        }
    }
    !kept.is_empty()
}

/// The turn that the view is built for.
struct RunningTurn {
    start: Option<EntryId>,
    run_id: Option<Value>,
}

impl RunningTurn {
    fn new(entries: &[Entry], start: Option<EntryId>) -> Self {
        let prompt = entries.iter().find(|entry| Some(entry.id) == start);
        Self {
            start,
            run_id: prompt.and_then(|entry| entry.meta.get("run_id").cloned()),
        }
    }

    /// Returns whether an entry belongs to the turn. Messages that waited for the turn precede its prompt.
    fn contains(&self, entry: &Entry) -> bool {
        let run_id = entry.meta.get("run_id");
        self.start.is_some_and(|start| entry.id >= start)
            || run_id.is_some() && run_id == self.run_id.as_ref()
    }
}

/// Returns which media of earlier turns the view shows: the position of their entry, and their number in it.
///
/// Media without an answer are not among them: if a provider rejects a request because of an image, it would reject all
/// further requests with it.
fn kept_media(
    entries: &[Entry],
    turn: &RunningTurn,
    origin: Option<EntryId>,
    limit: MediaLimit,
) -> HashSet<(usize, usize)> {
    let answered = answered_positions(entries);
    let (mut kept, mut total) = (VecDeque::new(), 0);
    for (position, entry) in entries.iter().enumerate() {
        let is_after_anchor = origin.is_none_or(|origin| entry.id > origin);
        if !has_media(entry)
            || turn.contains(entry)
            || !is_after_anchor
            || !answered.contains(&position)
        {
            continue;
        }
        for (number, item) in media_items(entry).iter().enumerate() {
            let bytes = item.get("bytes").and_then(Value::as_u64);
            let bytes = bytes.unwrap_or(UNKNOWN_BYTES);
            kept.push_back(((position, number), bytes));
            total += bytes;
            if limit.is_exceeded_by(kept.len(), total) {
                // The newest one stays if it is within the limit on its own.
                while kept.len() > 1 && limit.half().is_exceeded_by(kept.len(), total) {
                    total -= kept.pop_front().map_or(0, |(_, bytes)| bytes);
                }
                if limit.is_exceeded_by(kept.len(), total) {
                    kept.clear();
                    total = 0;
                }
            }
        }
    }
    kept.into_iter().map(|(place, _)| place).collect()
}

/// Returns the positions of the user messages that the model answered in the same run.
fn answered_positions(entries: &[Entry]) -> HashSet<usize> {
    let (mut answered, mut runs) = (HashSet::new(), HashSet::new());
    for (position, entry) in entries.iter().enumerate().rev() {
        let run = entry.meta.get("run_id").and_then(Value::as_str);
        let role = entry.payload.get("role").and_then(Value::as_str);
        let is_answer = entry.kind == EntryKind::ToolCall
            || entry.kind == EntryKind::Message && role == Some("assistant");
        if is_answer {
            runs.insert(run);
        } else if runs.contains(&run) {
            answered.insert(position);
        }
    }
    answered
}

fn has_media(entry: &Entry) -> bool {
    entry.kind == EntryKind::Message && !media_items(entry).is_empty()
}

fn media_items(entry: &Entry) -> &[Value] {
    let items = entry.meta.get(media::MEDIA_KEY).and_then(Value::as_array);
    items.map_or(&[], Vec::as_slice)
}

/// Returns the text in place of media that are not shown.
fn marker_part(item: &Value) -> Value {
    let text = |key: &str| item.get(key).and_then(Value::as_str);
    let kind = match text("type") {
        Some("image_url") => "image",
        Some("video_url") => "video",
        Some("input_audio") => "audio",
        _ => "file",
    };
    let name = text("name").map_or_else(String::new, |name| format!(" {name}"));
    json!({"type": "text", "text": format!("[{kind}{name}, sent earlier]")})
}
