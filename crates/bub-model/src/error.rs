//! Errors of model calls, with the action that can resolve them.

use std::fmt;
use std::time::Duration;

use bub_settings::Redactor;
use serde::Deserialize;

/// The action that can resolve a [`ModelError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RecoveryAction {
    /// Repeat the call later, after `retry_after` if it is set.
    Retry,
    /// Provide another key or log in again: the key or login is missing, invalid or expired.
    Reauthenticate,
    /// Shorten the conversation: it is too long for the model.
    ShrinkContext,
    /// Try another model or provider: this one cannot process the request.
    NextModel,
    /// Do nothing: the request is invalid, or the call was cancelled.
    GiveUp,
}

/// The kind of failure, for messages and logs. Use [`RecoveryAction`] to decide what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ModelErrorKind {
    /// The provider returned an HTTP error or an error event.
    Provider,
    /// The connection failed.
    Transport,
    /// No data arrived in time, or the call took too long.
    Timeout,
    /// The stream ended before the answer was complete.
    Truncated,
    /// The answer is complete but has no content, and the provider gave no reason.
    Empty,
    /// The response does not conform to the wire format.
    Malformed,
    /// The response exceeds a size limit.
    TooLarge,
    /// The call was cancelled.
    Cancelled,
    /// The call could not be made, for example without a key or with invalid settings.
    Setup,
}

/// A failed model call.
///
/// The message is one short line without secrets. HTML pages are reduced to their title.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelError {
    /// The action that can resolve the error.
    pub action: RecoveryAction,
    /// The kind of failure.
    pub kind: ModelErrorKind,
    /// HTTP status, or the status in an error event.
    pub status: Option<u16>,
    /// The provider's machine-readable code or type.
    pub code: Option<String>,
    /// Description of the error, from the provider or from this crate.
    pub message: String,
    /// Delay that the provider requests before a retry.
    pub retry_after: Option<Duration>,
    /// `provider:model` of the call, if it is known.
    pub provider: Option<String>,
    /// Errors of the other models that the call tried.
    pub others: Vec<ModelError>,
}

impl ModelError {
    /// Creates an error with a [shortened](short_message) message and no other details.
    pub fn new(kind: ModelErrorKind, action: RecoveryAction, message: impl AsRef<str>) -> Self {
        let message = short_message(message.as_ref());
        Self {
            action,
            kind,
            status: None,
            code: None,
            message,
            retry_after: None,
            provider: None,
            others: Vec::new(),
        }
    }

    /// Creates the error for a stream that ended early. A retry is safe if the caller has not acted on the answer.
    pub fn truncated(message: impl AsRef<str>) -> Self {
        Self::new(ModelErrorKind::Truncated, RecoveryAction::Retry, message)
    }

    /// Creates the error for an empty answer.
    pub fn empty() -> Self {
        let message = "the model returned an empty answer";
        Self::new(ModelErrorKind::Empty, RecoveryAction::Retry, message)
    }

    /// Creates the error for a response that does not conform to the wire format. The call is retried, because
    /// temporary failures of proxies cause such responses.
    pub fn malformed(message: impl AsRef<str>) -> Self {
        Self::new(ModelErrorKind::Malformed, RecoveryAction::Retry, message)
    }

    /// Creates the error for a response that exceeds a size limit. The same model is not called again, because its next
    /// response would exceed the limit too.
    pub fn too_large(message: impl AsRef<str>) -> Self {
        Self::new(ModelErrorKind::TooLarge, RecoveryAction::NextModel, message)
    }

    /// Creates the error for a server that did not respond in time. The call is retried.
    pub(crate) fn timeout(message: impl AsRef<str>) -> Self {
        Self::new(ModelErrorKind::Timeout, RecoveryAction::Retry, message)
    }

    /// Creates the error for a failed connection. The call is retried.
    pub(crate) fn transport(message: impl AsRef<str>) -> Self {
        Self::new(ModelErrorKind::Transport, RecoveryAction::Retry, message)
    }

    /// Creates the error for a call that cannot be made with the current settings. Nothing is retried.
    pub(crate) fn setup(message: impl AsRef<str>) -> Self {
        Self::new(ModelErrorKind::Setup, RecoveryAction::GiveUp, message)
    }

    /// Replaces the action.
    pub(crate) fn with_action(mut self, action: RecoveryAction) -> Self {
        self.action = action;
        self
    }

    /// Appends a hint to the message.
    pub(crate) fn append(&mut self, hint: &str) {
        self.message = format!("{}; {hint}", self.message);
    }

    /// Redacts the message and the code.
    #[must_use]
    pub fn redacted(mut self, redactor: &Redactor) -> Self {
        self.message = redactor.redact(&self.message).into_owned();
        self.code = self.code.map(|code| redactor.redact(&code).into_owned());
        self
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(provider) = &self.provider {
            write!(f, "{provider}: ")?;
        }
        f.write_str(&self.message)?;
        match (self.status, &self.code) {
            (Some(status), Some(code)) => write!(f, " (HTTP {status}, {code})")?,
            (Some(status), None) => write!(f, " (HTTP {status})")?,
            (None, Some(code)) => write!(f, " ({code})")?,
            (None, None) => {}
        }
        self.others
            .iter()
            .try_for_each(|other| write!(f, "; also {other}"))
    }
}

impl std::error::Error for ModelError {}

/// Result of an operation that can fail with a [`ModelError`].
pub type Result<T, E = ModelError> = std::result::Result<T, E>;

/// Maximum length of a message in characters.
const MAX_MESSAGE_CHARS: usize = 400;

/// Shortens text to one line of at most 400 characters. An HTML page is reduced to its title.
pub fn short_message(text: &str) -> String {
    let text = text.trim();
    let text = if looks_like_html(text) {
        html_title(text)
    } else {
        text
    };
    let mut short = String::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        if length > 0 {
            short.push(' ');
            length += 1;
        }
        for character in word.chars().filter(|character| !character.is_control()) {
            if length >= MAX_MESSAGE_CHARS {
                short.push('…');
                return short;
            }
            short.push(character);
            length += 1;
        }
    }
    short
}

/// Returns whether a body is an HTML or XML page and not an API response.
pub fn looks_like_html(text: &str) -> bool {
    let head = text.trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n']);
    let head: String = head
        .chars()
        .take(15)
        .collect::<String>()
        .to_ascii_lowercase();
    [
        "<!doctype",
        "<html",
        "<head",
        "<body",
        "<center",
        "<h1",
        "<title",
        "<!--",
        "<?xml",
        "<error",
        "<meta",
    ]
    .iter()
    .any(|start| head.starts_with(start))
}

fn html_title(text: &str) -> &str {
    let lower = text.to_ascii_lowercase();
    // Storage services and proxies send XML with a `message` element instead of a title.
    let title = ["title>", "h1>", "message>"].iter().find_map(|tag| {
        let start = lower.find(tag)? + tag.len();
        let end = start + lower.get(start..)?.find('<')?;
        text.get(start..end)
            .map(str::trim)
            .filter(|title| !title.is_empty())
    });
    title.unwrap_or("a page without a title")
}
