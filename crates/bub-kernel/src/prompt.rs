//! The user input of the model stage: plain text, or content parts in the chat-completions format.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The prefix that the program has set.
static COMMAND_PREFIX: OnceLock<String> = OnceLock::new();

/// Returns the text that starts a command, which is a comma unless the program has set another one.
pub fn command_prefix() -> &'static str {
    COMMAND_PREFIX.get().map_or(",", String::as_str)
}

/// Sets the text that starts a command, for all sessions of this process (P-11 in `docs/spec`). Only the first call has
/// an effect, because messages that are already accepted must keep their meaning.
pub fn set_command_prefix(prefix: String) {
    let _ = COMMAND_PREFIX.set(prefix);
}

/// Returns the command in a text, without its prefix and trimmed. Returns `None` if the text is no command.
///
/// White space before the prefix does not matter (P-47 in `docs/spec`). Everything that distinguishes commands from text
/// uses this function.
///
/// ```
/// use bub_kernel::command_line;
///
/// assert_eq!(command_line(" , ls -l\n"), Some("ls -l"));
/// assert_eq!(command_line("yes, ls"), None);
/// ```
pub fn command_line(text: &str) -> Option<&str> {
    text.trim().strip_prefix(command_prefix()).map(str::trim)
}

/// The user input of the model stage.
///
/// ```
/// use bub_kernel::Prompt;
/// use serde_json::json;
///
/// let parts = vec![json!({"type": "text", "text": "hello"})];
/// assert_eq!(Prompt::from(parts).text(), "hello");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    /// Plain text.
    Text(String),
    /// Content parts: `{"type": "text", …}`, `{"type": "image_url", …}` and so on.
    Parts(Vec<Value>),
}

impl Prompt {
    /// Returns whether the prompt has no text and no parts.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Parts(parts) => parts.is_empty(),
        }
    }

    /// Returns the text of a [`Prompt::Text`].
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Parts(_) => None,
        }
    }

    /// Returns whether the prompt is a comma command.
    pub fn is_command(&self) -> bool {
        self.as_text().and_then(command_line).is_some()
    }

    /// Returns the text of the prompt. Several text parts are joined by newlines.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                let texts: Vec<&str> = parts.iter().filter_map(part_text).collect();
                texts.join("\n")
            }
        }
    }
}

fn part_text(part: &Value) -> Option<&str> {
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
