//! The one error type that crosses hook boundaries.
//!
//! [`ErrorKind`] says what the caller can do about it; the message says what happened. An error of a
//! plugin keeps its own type: [`Error::downcast_ref`] gives it back, and its text is not reworded.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use serde_json::{Map, Value, json};

use crate::{envelope::stringify, hooks::guard};

/// Any error a plugin may return from a hook.
pub type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller can do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input is wrong: change it and call again.
    InvalidInput,
    /// A setting is wrong or missing: change the configuration.
    Config,
    /// The model provider refused: try another model, or give up.
    Provider,
    /// A tool failed: tell the model.
    Tool,
    /// It may work later: retry, after [`Error::retry_after`] when that is known.
    Temporary,
    /// What was asked for does not exist.
    NotFound,
    /// The work was cancelled on request: nothing to do.
    Cancelled,
    /// The session has no room for more messages: retry later, or use another session.
    SessionFull,
    /// No client is connected to take a reply: keep it until one asks for it.
    Unclaimed,
    /// Another process uses it: stop that process, or use another one.
    InUse,
    /// Nothing is known about it: report it.
    Unknown,
}

impl ErrorKind {
    const NAMES: [(Self, &'static str); 11] = [
        (Self::InvalidInput, "invalid_input"),
        (Self::Config, "config"),
        (Self::Provider, "provider"),
        (Self::Tool, "tool"),
        (Self::Temporary, "temporary"),
        (Self::NotFound, "not_found"),
        (Self::Cancelled, "cancelled"),
        (Self::SessionFull, "session_full"),
        (Self::Unclaimed, "unclaimed"),
        (Self::InUse, "in_use"),
        (Self::Unknown, "unknown"),
    ];

    /// The name used in text, on the tape and in the plugin protocol.
    pub fn name(self) -> &'static str {
        Self::NAMES
            .iter()
            .find(|(kind, _)| *kind == self)
            .map_or("unknown", |(_, name)| name)
    }

    /// The kind of that name; a name nobody knows is [`ErrorKind::Unknown`].
    pub fn from_name(name: &str) -> Self {
        Self::NAMES
            .iter()
            .find(|(_, known)| *known == name)
            .map_or(Self::Unknown, |(kind, _)| *kind)
    }
}

/// Where an error came from, when a hook raised it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookOrigin {
    /// The hook that failed.
    pub hook: &'static str,
    /// The plugin whose implementation failed.
    pub plugin: Arc<str>,
}

/// An error with a kind, a message, and, where it is known, the hook it came from.
///
/// Cloning is cheap: the same error goes to `save_state`, to the observers and to the caller.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    details: Map<String, Value>,
    retry_after: Option<Duration>,
    is_reported: bool,
    origin: Option<HookOrigin>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of a kind, with a message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            kind,
            message: message.into(),
            details: Map::new(),
            retry_after: None,
            is_reported: false,
            origin: None,
            source: None,
        }))
    }

    /// An [`ErrorKind::InvalidInput`] error.
    pub fn invalid_input(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    /// An [`ErrorKind::Config`] error.
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, message)
    }

    /// An [`ErrorKind::NotFound`] error.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// An [`ErrorKind::Unknown`] error.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unknown, message)
    }

    /// Wraps any error; one that was an [`Error`] before is that one again.
    pub fn from_boxed(error: BoxError) -> Self {
        match error.downcast::<BoxedError>() {
            Ok(own) => own.0,
            Err(foreign) => {
                // It is somebody else's code that puts the error into words.
                let message = guard::catch(|| foreign.to_string());
                let message =
                    message.unwrap_or_else(|_| "an error that cannot be put into words".to_owned());
                Self::new(ErrorKind::Unknown, message)
                    .edit(|inner| inner.source = Some(Arc::from(foreign)))
            }
        }
    }

    /// The same error, with something else to do about it.
    #[must_use]
    pub fn with_kind(self, kind: ErrorKind) -> Self {
        self.edit(|inner| inner.kind = kind)
    }

    /// Reads the map form `{kind, message, details?}`; whatever is missing or odd is tolerated.
    pub fn from_value(value: &Value) -> Self {
        let text = |key: &str| value.get(key).and_then(Value::as_str);
        let kind = ErrorKind::from_name(text("kind").unwrap_or_default());
        let message = text("message").map_or_else(|| stringify(value), str::to_owned);
        let mut details = value
            .get("details")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        // What has no place of its own is kept: an unknown kind, further keys.
        for (key, extra) in value.as_object().into_iter().flatten() {
            let is_known = match key.as_str() {
                "message" | "details" => true,
                "kind" => extra.as_str() == Some(kind.name()),
                _ => false,
            };
            if !is_known {
                details.entry(key.as_str()).or_insert_with(|| extra.clone());
            }
        }
        Self::new(kind, message).edit(|inner| inner.details = details)
    }

    /// The map form `{kind, message, details?}`; `details` only when there are any.
    pub fn to_value(&self) -> Value {
        let mut value = json!({"kind": self.kind().name(), "message": self.message()});
        if let (Value::Object(map), false) = (&mut value, self.0.details.is_empty()) {
            map.insert("details".into(), Value::Object(self.0.details.clone()));
        }
        value
    }

    /// Adds one detail.
    #[must_use]
    pub fn with_detail(self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.edit(|inner| {
            inner.details.insert(key.into(), value.into());
        })
    }

    /// Says when a retry is welcome.
    #[must_use]
    pub fn with_retry_after(self, delay: Duration) -> Self {
        self.edit(|inner| inner.retry_after = Some(delay))
    }

    /// Marks that the sender of the message was notified of it.
    #[must_use]
    pub fn reported(self) -> Self {
        self.edit(|inner| inner.is_reported = true)
    }

    /// Notes which hook raised it; the innermost hook is kept.
    #[must_use]
    pub(crate) fn in_hook(self, hook: &'static str, plugin: &Arc<str>) -> Self {
        if self.0.origin.is_some() {
            return self;
        }
        self.edit(|inner| {
            inner.origin = Some(HookOrigin {
                hook,
                plugin: Arc::clone(plugin),
            });
        })
    }

    fn edit(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// What the caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What happened, without the kind.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Structured details; empty when there are none.
    pub fn details(&self) -> &Map<String, Value> {
        &self.0.details
    }

    /// How long to wait before a retry, when that is known.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Whether the sender of the message was notified of it.
    pub fn is_reported(&self) -> bool {
        self.0.is_reported
    }

    /// The hook and plugin that raised it.
    pub fn origin(&self) -> Option<&HookOrigin> {
        self.0.origin.as_ref()
    }

    /// The plugin's own error, by its type.
    pub fn downcast_ref<E: StdError + 'static>(&self) -> Option<&E> {
        self.0
            .source
            .as_deref()
            .and_then(|source| source.downcast_ref())
    }
}

impl fmt::Display for Error {
    /// `[kind] message`; the error of somebody else's type reads as its author wrote it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.source.is_some() {
            return f.write_str(&self.0.message);
        }
        write!(f, "[{}] {}", self.0.kind.name(), self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.0.kind)
            .field("message", &self.0.message);
        if let Some(origin) = &self.0.origin {
            out.field("origin", origin);
        }
        out.finish_non_exhaustive()
    }
}

/// Every error type becomes an [`Error`] with `?`. That is why [`Error`] itself is none in the sense of the standard
/// library; where one is wanted, `BoxError::from` makes it one.
impl<E: StdError + Send + Sync + 'static> From<E> for Error {
    fn from(error: E) -> Self {
        Self::from_boxed(Box::new(error))
    }
}

/// An [`Error`] on its way through code that knows only boxed errors.
struct BoxedError(Error);

impl From<Error> for BoxError {
    fn from(error: Error) -> Self {
        Box::new(BoxedError(error))
    }
}

impl fmt::Display for BoxedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for BoxedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for BoxedError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.0.source.as_deref().and_then(StdError::source)
    }
}
