//! Errors of a model call, typed by what to do about them.

use std::fmt;
use std::time::Duration;

use bub_settings::Redactor;

/// What a caller can do about a [`ModelError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RecoveryAction {
    /// The same call may work later (after `retry_after`, when given).
    Retry,
    /// The key or login is missing, wrong or expired.
    Reauthenticate,
    /// The conversation is too long for the model.
    ShrinkContext,
    /// This model or provider will not do it; another one may.
    NextModel,
    /// The request itself is wrong, or nobody wants the answer any more.
    GiveUp,
}

/// Where in a call the failure happened, for messages and logs. Decisions use [`RecoveryAction`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ModelErrorKind {
    /// The provider said no: an HTTP error, or an error event inside the stream.
    Provider,
    /// No connection, or it broke.
    Transport,
    /// Nothing came for too long.
    Timeout,
    /// The stream ended before the answer did.
    Truncated,
    /// The answer ended properly and has nothing in it: no choice, no word about why.
    Empty,
    /// What came is not what this wire format promises.
    Malformed,
    /// More came than a limit allows.
    TooLarge,
    /// The call was cancelled.
    Cancelled,
    /// The call could not even be made (no key, bad settings).
    Setup,
}

/// A failed model call.
///
/// The message is short, one line, without secrets and never a dumped HTML page.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelError {
    /// What to do about it.
    pub action: RecoveryAction,
    /// Where it happened.
    pub kind: ModelErrorKind,
    /// HTTP status, or the status an error event claims.
    pub status: Option<u16>,
    /// The provider's machine-readable code or type.
    pub code: Option<String>,
    /// What the provider, or this crate, says about it.
    pub message: String,
    /// How long the provider asks to wait.
    pub retry_after: Option<Duration>,
    /// `provider:model` of the call, once known.
    pub provider: Option<String>,
    /// What became of the other models that were asked.
    pub others: Vec<ModelError>,
}

impl ModelError {
    /// An error with a cleaned message and nothing else known.
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

    /// The stream ended early: worth another try, as long as nothing was acted on.
    pub fn truncated(message: impl AsRef<str>) -> Self {
        Self::new(ModelErrorKind::Truncated, RecoveryAction::Retry, message)
    }

    /// An answer with nothing in it.
    pub fn empty() -> Self {
        Self::new(
            ModelErrorKind::Empty,
            RecoveryAction::Retry,
            "the model answered nothing",
        )
    }

    /// Not the promised format. Retried, because a proxy's hiccup looks like this.
    pub fn malformed(message: impl AsRef<str>) -> Self {
        Self::new(ModelErrorKind::Malformed, RecoveryAction::Retry, message)
    }

    /// A limit of this crate was exceeded; the same call would exceed it again.
    pub fn too_large(message: impl AsRef<str>) -> Self {
        Self::new(ModelErrorKind::TooLarge, RecoveryAction::NextModel, message)
    }

    /// Adds the HTTP status.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// Adds the provider's code.
    #[must_use]
    pub fn with_code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }

    /// Adds who failed, as `provider:model`.
    #[must_use]
    pub fn with_provider(mut self, provider: impl Into<String>) -> Self {
        self.provider = Some(provider.into());
        self
    }

    /// Takes every secret known to the redactor out of the texts.
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

/// Longest message kept, in characters.
const MAX_MESSAGE_CHARS: usize = 400;

/// One line of at most some hundred characters; a page of HTML is reduced to its title.
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

/// Whether a body is a web page rather than an answer of an API.
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
    // Storage services and gateways write XML, which has a message where a page has its title.
    let title = ["title>", "h1>", "message>"].iter().find_map(|tag| {
        let start = lower.find(tag)? + tag.len();
        let end = start + lower.get(start..)?.find('<')?;
        text.get(start..end)
            .map(str::trim)
            .filter(|title| !title.is_empty())
    });
    title.unwrap_or("a page without a title")
}
