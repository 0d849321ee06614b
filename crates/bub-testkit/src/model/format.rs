//! Wire formats of scripted answers.

use serde_json::{Value, json};

use super::reply::{Finish, ReplyPart, ReplyUsage};

mod blocks;
mod chat;
mod generate;
mod items;

/// A wire format, selected by the path of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// `POST …/chat/completions`
    Chat,
    /// `POST …/responses`
    Responses,
    /// `POST …/messages`
    Messages,
    /// `POST …:generateContent` and `…:streamGenerateContent`
    Generate,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 4] = [Self::Chat, Self::Responses, Self::Messages, Self::Generate];

    /// Returns the format of a path.
    pub fn from_path(path: &str) -> Option<Self> {
        if path.ends_with("/chat/completions") {
            Some(Self::Chat)
        } else if path.ends_with("/responses") {
            Some(Self::Responses)
        } else if path.ends_with("/messages") {
            Some(Self::Messages)
        } else if path.ends_with("enerateContent") {
            Some(Self::Generate)
        } else {
            None
        }
    }

    /// Returns the events of a streamed answer.
    pub(super) fn frames(self, script: &ScriptedAnswer) -> Vec<StreamFrame> {
        match self {
            Self::Chat => chat::frames(script),
            Self::Responses => items::frames(script),
            Self::Messages => blocks::frames(script),
            Self::Generate => generate::frames(script),
        }
    }

    /// Returns the complete body of an answer that is not streamed.
    pub(super) fn full_response(self, script: &ScriptedAnswer) -> Value {
        match self {
            Self::Chat => chat::full_response(script),
            Self::Responses => items::full_response(script),
            Self::Messages => blocks::full_response(script),
            Self::Generate => generate::full_response(script),
        }
    }

    /// Returns the body of an HTTP error.
    pub(super) fn error_body(self, status: u16, message: &str) -> Value {
        let kind = error_type(status);
        match self {
            Self::Chat | Self::Responses => {
                json!({"error": {"message": message, "type": kind, "param": null, "code": null}})
            }
            Self::Messages => json!({"type": "error", "error": {"type": kind, "message": message}}),
            Self::Generate => {
                json!({"error": {"code": status, "message": message, "status": kind.to_uppercase()}})
            }
        }
    }
}

/// One event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StreamFrame {
    pub(super) event: Option<String>,
    pub(super) data: String,
}

impl StreamFrame {
    pub(super) fn from_json(value: &Value) -> Self {
        Self {
            event: None,
            data: value.to_string(),
        }
    }

    /// Creates an event that is named after the `type` of its data.
    pub(super) fn typed(value: &Value) -> Self {
        let event = value.get("type").and_then(Value::as_str).map(str::to_owned);
        Self {
            event,
            data: value.to_string(),
        }
    }

    pub(super) fn from_text(data: &str) -> Self {
        Self {
            event: None,
            data: data.to_owned(),
        }
    }

    /// Encodes the event.
    pub(super) fn encode(&self, newline: &str) -> String {
        let event = self
            .event
            .iter()
            .map(|name| format!("event: {name}{newline}"));
        let data = self
            .data
            .lines()
            .map(|line| format!("data: {line}{newline}"));
        event.chain(data).chain([newline.to_owned()]).collect()
    }
}

/// Parts of a scripted answer in order, with defaults for missing parts.
pub(super) struct ScriptedAnswer {
    /// Text, reasoning, calls, errors and garbage, without usage and finish.
    pub(super) parts: Vec<ReplyPart>,
    pub(super) usage: ReplyUsage,
    pub(super) finish: Finish,
    pub(super) model: String,
}

impl ScriptedAnswer {
    pub(super) fn new(parts: &[ReplyPart], model: String) -> Self {
        let mut usage = ReplyUsage::default();
        let has_calls = parts
            .iter()
            .any(|part| matches!(part, ReplyPart::Call { .. }));
        let mut finish = if has_calls {
            Finish::ToolCalls
        } else {
            Finish::Stop
        };
        let mut content_parts = Vec::new();
        for part in parts {
            match part {
                ReplyPart::Usage(usage_part) => usage = *usage_part,
                ReplyPart::Finish(finish_part) => finish = *finish_part,
                other => content_parts.push(other.clone()),
            }
        }
        Self {
            parts: content_parts,
            usage,
            finish,
            model,
        }
    }

    /// Returns whether an error event ends the stream; nothing is sent after it.
    pub(super) fn has_error_event(&self) -> bool {
        self.parts
            .iter()
            .any(|part| matches!(part, ReplyPart::Error(_)))
    }

    pub(super) fn text(&self) -> String {
        self.parts
            .iter()
            .filter_map(|part| {
                if let ReplyPart::Text(deltas) = part {
                    Some(deltas.concat())
                } else {
                    None
                }
            })
            .collect()
    }

    pub(super) fn reasoning(&self) -> String {
        self.parts
            .iter()
            .filter_map(|part| {
                if let ReplyPart::Reasoning(deltas) = part {
                    Some(deltas.concat())
                } else {
                    None
                }
            })
            .collect()
    }
}

fn error_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        500..=599 => "api_error",
        _ => "invalid_request_error",
    }
}
