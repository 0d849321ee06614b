//! What is asked of the model: plain text, or content parts in the chat-completions shape.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A message that starts with this character is a comma command.
pub const COMMAND_PREFIX: char = ',';

/// A prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    /// Plain text.
    Text(String),
    /// Content parts: `{"type": "text", …}`, `{"type": "image_url", …}` and so on.
    Parts(Vec<Value>),
}

impl Prompt {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Parts(parts) => parts.is_empty(),
        }
    }

    /// The plain text, when it is nothing else.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Parts(_) => None,
        }
    }

    /// Whether it is a comma command.
    pub fn is_command(&self) -> bool {
        self.as_text()
            .is_some_and(|text| text.trim_start().starts_with(COMMAND_PREFIX))
    }

    /// All text in it; several text parts are joined by a newline.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                let texts: Vec<&str> = parts.iter().filter_map(text_of_part).collect();
                texts.join("\n")
            }
        }
    }
}

fn text_of_part(part: &Value) -> Option<&str> {
    match part.get("type").and_then(Value::as_str) {
        Some("text") => part.get("text").and_then(Value::as_str),
        _ => None,
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Vec<Value>> for Prompt {
    fn from(parts: Vec<Value>) -> Self {
        Self::Parts(parts)
    }
}
