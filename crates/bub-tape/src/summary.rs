//! Summaries of tapes. The index stores them, so that they need not be read from the tape.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{AnchorMark, Entry, EntryId, EntryKind, Position, SESSION_START, handoff_entries};

/// Maximum number of hashes in [`TapeSummary::prompts`]. The oldest hash is dropped; if its system prompt is used
/// again, the tape stores the prompt again.
const MAX_PROMPTS: usize = 32;
/// Maximum length of a title. The rest of the line is dropped.
const MAX_TITLE_CHARS: usize = 80;
/// Largest id that counts for [`TapeSummary::max_id`]. All JSON parsers represent it exactly, and no tape is this long.
const MAX_ENTRY_ID: i64 = 1 << 53;

/// Statistics of a tape, and the latest values that its entries record, such as the model. Computed from all entries in
/// tape order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TapeSummary {
    /// Number of entries.
    pub entries: u64,
    /// Number of anchors.
    pub anchors: u64,
    /// The highest id on the tape. Ids above 2^53 do not count.
    pub max_id: EntryId,
    /// The latest anchor.
    pub last_anchor: Option<AnchorMark>,
    /// Number of entries after the latest anchor, or of all entries if the tape has no anchor.
    pub entries_since_last_anchor: u64,
    /// The usage from the newest `run` event that reports usage.
    pub usage: Option<RecordedUsage>,
    /// The session's model, from its newest `model_switch` event.
    pub model: Option<String>,
    /// The session's reasoning effort, from its newest `reasoning_effort_switch` event.
    pub reasoning_effort: Option<String>,
    /// Whether the session is in code mode, from its newest `code_mode_switch` event.
    #[serde(default)]
    pub code_mode: bool,
    /// The names of the deferred tools that the session loaded, from its `tool.loaded` events.
    #[serde(default)]
    pub loaded_tools: Vec<String>,
    /// The items of the session's todo list, from its newest `todo` event.
    #[serde(default)]
    pub todo: Vec<String>,
    /// The id of the session that replaced the tape's session in its chat, from the newest `session_switch` event.
    #[serde(default)]
    pub switched_to: Option<String>,
    /// The session the tape belongs to, or `None` if the tape does not record it.
    pub session: Option<SessionInfo>,
    /// The first line of the first user message.
    pub title: Option<String>,
    /// The date of the first entry.
    pub first_date: Option<String>,
    /// The date of the last entry.
    pub last_date: Option<String>,
    /// Hashes of the latest system prompts that are stored on the tape.
    pub prompts: Vec<String>,
}

/// Token usage of a model call, as recorded in a `run` event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedUsage {
    /// Total number of tokens.
    pub total_tokens: i64,
    /// Number of prompt tokens.
    pub prompt_tokens: Option<i64>,
    /// Number of prompt tokens that the provider read from its cache.
    pub cached_tokens: Option<i64>,
}

impl RecordedUsage {
    /// Returns the fraction of prompt tokens read from the cache, from 0 to 1, if it is known.
    #[expect(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^52"
    )]
    pub fn cache_hit_rate(&self) -> Option<f64> {
        let prompt = self.prompt_tokens.filter(|prompt| *prompt > 0)?;
        let cached = self.cached_tokens?;
        Some(cached as f64 / prompt as f64)
    }

    fn from_event_data(data: &Value) -> Option<Self> {
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

/// The session a tape belongs to. It is recorded in the meta of the `session/start` anchor, or in a `session.info`
/// event on older tapes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// The session id.
    pub session_id: String,
    /// The resolved path of the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// The channel of the message that started the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
}

impl SessionInfo {
    /// Creates the information for a session id, without workspace and channel.
    pub fn new(session_id: impl Into<String>) -> Self {
        Self {
            session_id: session_id.into(),
            ..Self::default()
        }
    }

    /// Returns the entries that a tape with this summary needs before its first turn, or no entries if the tape already
    /// has them.
    ///
    /// See [`Tape::ensure_bootstrap`](crate::Tape::ensure_bootstrap).
    pub fn bootstrap_entries(&self, summary: &TapeSummary) -> Vec<Entry> {
        if summary.anchors == 0 {
            let state = json!({"owner": "human"});
            return handoff_entries(SESSION_START, Some(state), self.to_map());
        }
        let is_recorded = summary.session.is_some();
        (!is_recorded)
            .then(|| self.to_event())
            .into_iter()
            .collect()
    }

    /// Creates the `session.info` event, which records the session on a tape whose `session/start` anchor does not.
    pub fn to_event(&self) -> Entry {
        Entry::event("session.info", Some(Value::Object(self.to_map()))).exclude_from_context()
    }

    /// Returns the keys and values for the meta of the `session/start` anchor.
    pub fn to_map(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(map)) => map,
            // Serializing three texts cannot fail.
            _ => Map::new(),
        }
    }

    fn from_map(map: &Map<String, Value>) -> Option<Self> {
        let text = |key: &str| Some(map.get(key)?.as_str()?.to_owned());
        Some(Self {
            session_id: text("session_id")?,
            workspace: text("workspace"),
            channel: text("channel"),
        })
    }
}

impl TapeSummary {
    /// Updates the summary with the next entry of the tape. Returns a mark if the entry is an anchor.
    pub fn observe(&mut self, entry: &Entry, position: Position) -> Option<AnchorMark> {
        self.update_counts(entry.id, &entry.date);
        match &entry.kind {
            EntryKind::Anchor => {
                self.session = SessionInfo::from_map(&entry.meta).or(self.session.take());
                self.anchors += 1;
                self.entries_since_last_anchor = 0;
                self.last_anchor = Some(AnchorMark {
                    id: entry.id,
                    name: entry.name().unwrap_or_default().to_owned(),
                    position,
                });
                return self.last_anchor.clone();
            }
            EntryKind::Event => self.observe_event(entry.name().unwrap_or_default(), entry.data()),
            EntryKind::Message if self.title.is_none() => {
                self.title = title_from_message(&entry.payload);
            }
            EntryKind::System => {
                self.observe_prompt_hash(entry.meta.get("sha256").and_then(Value::as_str));
            }
            EntryKind::Message
            | EntryKind::ToolCall
            | EntryKind::ToolResult
            | EntryKind::Error
            | EntryKind::Other(_) => {}
        }
        None
    }

    /// Returns whether an entry with this kind and event name can change fields of the summary other than counts, ids
    /// and dates.
    pub(crate) fn needs_entry(&self, kind: &str, event: Option<&str>) -> bool {
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
                            | "code_mode_switch"
                            | "tool.loaded"
                            | "todo"
                            | "session_switch"
                            | "session.info"
                    )
                )
            }
            _ => false,
        }
    }

    /// Updates the counts, the highest id and the dates with the next entry of the tape.
    pub(crate) fn update_counts(&mut self, id: EntryId, date: &str) {
        self.entries += 1;
        self.entries_since_last_anchor += 1;
        // Another program may have written an absurdly large id. It must not use up the available numbers.
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

    fn observe_event(&mut self, name: &str, data: Option<&Value>) {
        let text = |key: &str| Some(data?.get(key)?.as_str()?.to_owned());
        let texts = |key: &str| -> Vec<String> {
            let items = data.and_then(|data| data.get(key)?.as_array());
            let items = items.into_iter().flatten().filter_map(Value::as_str);
            items.map(str::to_owned).collect()
        };
        match name {
            "run" => self.usage = data.and_then(RecordedUsage::from_event_data).or(self.usage),
            "model_switch" => self.model = text("model"),
            "reasoning_effort_switch" => self.reasoning_effort = text("reasoning_effort"),
            "code_mode_switch" => {
                let is_on = |data: &Value| data.get("code_mode").and_then(Value::as_bool);
                self.code_mode = data.and_then(is_on).unwrap_or(false);
            }
            "tool.loaded" => {
                for name in texts("names") {
                    if !self.loaded_tools.contains(&name) {
                        self.loaded_tools.push(name);
                    }
                }
            }
            "todo" => self.todo = texts("items"),
            "session_switch" => self.switched_to = text("session_id"),
            "session.info" => {
                let session = data.and_then(Value::as_object);
                let session = session.and_then(SessionInfo::from_map);
                self.session = session.or(self.session.take());
            }
            _ => {}
        }
    }

    fn observe_prompt_hash(&mut self, hash: Option<&str>) {
        let Some(hash) = hash.filter(|hash| !self.prompts.iter().any(|known| known == hash)) else {
            return;
        };
        if self.prompts.len() >= MAX_PROMPTS {
            self.prompts.remove(0);
        }
        self.prompts.push(hash.to_owned());
    }
}

/// Returns the role and the text of a message. Skips the header with the context and date of a user's message, which
/// ends with a line `---Date: …---`.
pub fn message_text(message: &Map<String, Value>) -> Option<(&str, &str)> {
    let role = message.get("role").and_then(Value::as_str)?;
    let text = match message.get("content")? {
        Value::String(text) => text.as_str(),
        Value::Array(parts) => parts
            .iter()
            .find_map(|part| part.get("text").and_then(Value::as_str))?,
        _ => return None,
    };
    let body = match text.split_once("\n---Date: ") {
        Some((_, dated)) if role == "user" => {
            dated.split_once("---\n").map_or(text, |(_, body)| body)
        }
        _ => text,
    };
    Some((role, body))
}

/// Returns the first line of a user message.
fn title_from_message(message: &Map<String, Value>) -> Option<String> {
    let (role, body) = message_text(message)?;
    if role != "user" {
        return None;
    }
    let line = body.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().take(MAX_TITLE_CHARS).collect())
}
