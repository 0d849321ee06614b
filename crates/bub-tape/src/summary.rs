//! What can be known about a tape without reading it: the content of the derived index.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{AnchorMark, Entry, EntryId, EntryKind, Position, SESSION_START, handoff_entries};

/// Enough distinct system prompts to recognise a session's own; an older one is merely stored again.
const MAX_PROMPTS: usize = 32;
const MAX_TITLE_CHARS: usize = 80;
/// No tape gets this long, and every reader of JSON keeps such a number exact.
const MAX_ENTRY_ID: i64 = 1 << 53;

/// Figures and facts about a tape, folded from its entries one by one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TapeSummary {
    /// How many entries there are.
    pub entries: u64,
    /// How many of them are anchors.
    pub anchors: u64,
    /// The highest id.
    pub max_id: EntryId,
    /// The latest anchor.
    pub last_anchor: Option<AnchorMark>,
    /// How many entries follow the latest anchor (all of them when there is none).
    pub entries_since_last_anchor: u64,
    /// The usage of the newest `run` event that has one.
    pub usage: Option<RecordedUsage>,
    /// The model chosen for the session by its newest `model_switch`.
    pub model: Option<String>,
    /// The effort chosen for the session by its newest `reasoning_effort_switch`.
    pub reasoning_effort: Option<String>,
    /// The session that took this one's place in its chat, by its newest `session_switch`.
    #[serde(default)]
    pub switched_to: Option<String>,
    /// Whose tape it is.
    pub session: Option<SessionInfo>,
    /// The first line of the first user message.
    pub title: Option<String>,
    /// The date of the first entry.
    pub first_date: Option<String>,
    /// The date of the last entry.
    pub last_date: Option<String>,
    /// Hashes of the system prompts stored on the tape.
    pub prompts: Vec<String>,
}

/// Token usage of a model call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedUsage {
    /// All tokens.
    pub total_tokens: i64,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<i64>,
    /// Prompt tokens that came from a cache.
    pub cached_tokens: Option<i64>,
}

impl RecordedUsage {
    /// The share of the prompt that came from a cache.
    #[expect(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^52"
    )]
    pub fn cache_hit_rate(&self) -> Option<f64> {
        let (prompt, cached) = (
            self.prompt_tokens.filter(|prompt| *prompt > 0)?,
            self.cached_tokens?,
        );
        Some(cached as f64 / prompt as f64)
    }

    fn read(data: &Value) -> Option<Self> {
        let usage = data.get("usage")?;
        Some(Self {
            total_tokens: usage.get("total_tokens")?.as_i64()?,
            prompt_tokens: usage.get("prompt_tokens").and_then(Value::as_i64),
            cached_tokens: usage
                .pointer("/prompt_tokens_details/cached_tokens")
                .and_then(Value::as_i64),
        })
    }
}

/// Whose tape it is: recorded in the bootstrap anchor's meta, or in an event `session.info` on older tapes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// The session id.
    pub session_id: String,
    /// The resolved workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// The channel the session came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
}

impl SessionInfo {
    /// A session of that id.
    pub fn new(session_id: impl Into<String>) -> Self {
        Self {
            session_id: session_id.into(),
            ..Self::default()
        }
    }

    /// What a tape of which that is known lacks before its first turn; see [`Tape::ensure_bootstrap`](crate::Tape).
    pub fn bootstrap_entries(&self, tape: &TapeSummary) -> Vec<Entry> {
        if tape.anchors == 0 {
            return handoff_entries(
                SESSION_START,
                Some(json!({"owner": "human"})),
                self.to_map(),
            );
        }
        if tape.session.is_none() {
            vec![self.event()]
        } else {
            Vec::new()
        }
    }

    /// The event that tells an older tape whose it is.
    pub fn event(&self) -> Entry {
        Entry::event("session.info", Some(Value::Object(self.to_map()))).outside_context()
    }

    /// The keys as they stand in the bootstrap anchor's meta.
    pub fn to_map(&self) -> Map<String, Value> {
        let pairs = [
            ("session_id", Some(&self.session_id)),
            ("workspace", self.workspace.as_ref()),
            ("channel", self.channel.as_ref()),
        ];
        pairs
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), Value::String(value?.clone()))))
            .collect()
    }

    fn read(map: &Map<String, Value>) -> Option<Self> {
        let text = |key: &str| map.get(key).and_then(Value::as_str).map(str::to_owned);
        Some(Self {
            session_id: text("session_id")?,
            workspace: text("workspace"),
            channel: text("channel"),
        })
    }
}

impl TapeSummary {
    /// Adds the next entry of the tape and returns its mark when it is an anchor.
    pub fn observe(&mut self, entry: &Entry, position: Position) -> Option<AnchorMark> {
        self.count(entry.id, &entry.date);
        match &entry.kind {
            EntryKind::Anchor => {
                if let Some(session) = SessionInfo::read(&entry.meta) {
                    self.session = Some(session);
                }
                return Some(self.anchor(entry.id, entry.name().unwrap_or_default(), position));
            }
            EntryKind::Event => self.event(entry.name().unwrap_or_default(), entry.data()),
            EntryKind::Message if self.title.is_none() => self.title = title(&entry.payload),
            EntryKind::System => self.prompt(entry.meta.get("sha256").and_then(Value::as_str)),
            EntryKind::Message
            | EntryKind::ToolCall
            | EntryKind::ToolResult
            | EntryKind::Error
            | EntryKind::Other(_) => {}
        }
        None
    }

    /// Whether entries of that kind and name can change anything but counts and dates.
    pub(crate) fn wants(&self, kind: &str, event: Option<&str>) -> bool {
        match kind {
            "anchor" | "system" => true,
            "message" => self.title.is_none(),
            "event" => {
                matches!(
                    event,
                    None | Some(
                        "run"
                            | "model_switch"
                            | "reasoning_effort_switch"
                            | "session_switch"
                            | "session.info"
                    )
                )
            }
            _ => false,
        }
    }

    /// Adds an entry of which only id and date matter.
    pub(crate) fn count(&mut self, id: EntryId, date: &str) {
        self.entries += 1;
        self.entries_since_last_anchor += 1;
        // One absurd id, written by somebody else, must not leave us without numbers.
        if id.get() <= MAX_ENTRY_ID {
            self.max_id = self.max_id.max(id);
        }
        if self.first_date.is_none() {
            self.first_date = Some(date.to_owned());
        }
        let last = self.last_date.get_or_insert_default();
        last.clear();
        last.push_str(date);
    }

    fn anchor(&mut self, id: EntryId, name: &str, position: Position) -> AnchorMark {
        let mark = AnchorMark {
            id,
            name: name.to_owned(),
            position,
        };
        self.anchors += 1;
        self.entries_since_last_anchor = 0;
        self.last_anchor = Some(mark.clone());
        mark
    }

    fn event(&mut self, name: &str, data: Option<&Value>) {
        let text = |key: &str| {
            data.and_then(|data| data.get(key))
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        match name {
            "run" => self.usage = data.and_then(RecordedUsage::read).or(self.usage),
            "model_switch" => self.model = text("model"),
            "reasoning_effort_switch" => self.reasoning_effort = text("reasoning_effort"),
            "session_switch" => self.switched_to = text("session_id"),
            "session.info" => {
                if let Some(session) = data.and_then(Value::as_object).and_then(SessionInfo::read) {
                    self.session = Some(session);
                }
            }
            _ => {}
        }
    }

    fn prompt(&mut self, hash: Option<&str>) {
        let Some(hash) = hash.filter(|hash| !self.prompts.iter().any(|known| known == hash)) else {
            return;
        };
        if self.prompts.len() >= MAX_PROMPTS {
            self.prompts.remove(0);
        }
        self.prompts.push(hash.to_owned());
    }
}

/// The first line a person wrote, without the context header that channels put before it.
fn title(message: &Map<String, Value>) -> Option<String> {
    if message.get("role").and_then(Value::as_str) != Some("user") {
        return None;
    }
    let text = match message.get("content")? {
        Value::String(text) => text.as_str(),
        Value::Array(parts) => parts
            .iter()
            .find_map(|part| part.get("text").and_then(Value::as_str))?,
        _ => return None,
    };
    let body = match text.split_once("\n---Date: ") {
        Some((_, dated)) => dated.split_once("---\n").map_or(text, |(_, body)| body),
        None => text,
    };
    let line = body.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().take(MAX_TITLE_CHARS).collect())
}
