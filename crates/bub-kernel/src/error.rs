//! The error type of the kernel and of hooks.
//!
//! [`ErrorKind`] tells the caller how to react, and the message describes what failed. A plugin's error keeps its own
//! type and text: [`Error::downcast_ref`] returns it.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use bub_settings::Redactor;
use serde_json::{Map, Value, json};
use strum::{EnumString, IntoStaticStr};

use crate::{envelope::stringify, hooks::guard};

/// Any error that a plugin can return from a hook.
pub type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The class of an [`Error`], which tells the caller how to react.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EnumString, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input is invalid: change it and call again.
    InvalidInput,
    /// A setting is invalid or missing: change the configuration.
    Config,
    /// The model provider rejected the request: try another model or stop.
    Provider,
    /// A tool failed: report the error to the model.
    Tool,
    /// The operation may succeed later: retry, after [`Error::retry_after`] if that is known.
    Temporary,
    /// The requested item does not exist.
    NotFound,
    /// The work was cancelled on request: no action is needed.
    Cancelled,
    /// The session's queue is full: retry later or use another session.
    SessionFull,
    /// No client is connected to receive a reply: keep the reply until a client asks for it.
    Unclaimed,
    /// Another process uses the resource: stop that process or use another resource.
    InUse,
    /// The cause is not classified: report the error.
    Unknown,
}

impl ErrorKind {
    /// Returns the name that messages, the tape and the plugin protocol use.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns the kind with this name, or [`ErrorKind::Unknown`] for other names.
    pub fn from_name(name: &str) -> Self {
        name.parse().unwrap_or(Self::Unknown)
    }
}

/// The hook and plugin that returned an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HookOrigin {
    /// The hook that failed.
    pub hook: &'static str,
    /// The plugin whose implementation failed.
    pub plugin: Arc<str>,
}

/// An error with a kind, a message, and the hook it came from, if any.
///
/// Every error type converts into it with `?`. Cloning is cheap, so that `save_state`, `on_error` and the caller can
/// each get the error.
///
/// ```
/// use bub_kernel::{Error, ErrorKind};
///
/// let error = Error::not_found("unknown note `todo`").with_detail("note", "todo");
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// assert_eq!(error.to_string(), "[not_found] unknown note `todo`");
/// ```
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
    /// Creates an error.
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

    /// Creates an [`ErrorKind::InvalidInput`] error.
    pub fn invalid_input(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    /// Creates an [`ErrorKind::Config`] error.
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, message)
    }

    /// Creates an [`ErrorKind::NotFound`] error.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// Creates an [`ErrorKind::Unknown`] error.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unknown, message)
    }

    /// Wraps any error. A boxed [`Error`] is unwrapped again.
    pub fn from_boxed(error: BoxError) -> Self {
        match error.downcast::<BoxedError>() {
            Ok(boxed) => boxed.0,
            Err(foreign) => {
                // `Display` is plugin code and may panic.
                let message = guard::catch_panic(|| foreign.to_string());
                let message =
                    message.unwrap_or_else(|_| "unknown error: its `Display` panicked".to_owned());
                Self::unknown(message).modify_inner(|inner| inner.source = Some(foreign.into()))
            }
        }
    }

    /// Sets the kind.
    #[must_use]
    pub fn with_kind(self, kind: ErrorKind) -> Self {
        self.modify_inner(|inner| inner.kind = kind)
    }

    /// Converts the map form `{kind, message, details?}`. Missing and invalid fields are tolerated.
    pub fn from_value(value: &Value) -> Self {
        let text = |key: &str| value.get(key).and_then(Value::as_str);
        let kind = ErrorKind::from_name(text("kind").unwrap_or_default());
        let message = text("message").map_or_else(|| stringify(value), str::to_owned);
        let details = value.get("details").and_then(Value::as_object);
        let mut details = details.cloned().unwrap_or_default();
        // Unknown kinds and further keys are kept as details.
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
        Self::new(kind, message).modify_inner(|inner| inner.details = details)
    }

    /// Returns the map form `{kind, message, details?}`. `details` is omitted if it is empty.
    pub fn to_value(&self) -> Value {
        let mut value = json!({"kind": self.kind().name(), "message": self.message()});
        if let (Value::Object(map), false) = (&mut value, self.0.details.is_empty()) {
            map.insert("details".into(), Value::Object(self.0.details.clone()));
        }
        value
    }

    /// Adds a detail.
    #[must_use]
    pub fn with_detail(self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.modify_inner(|inner| {
            inner.details.insert(key.into(), value.into());
        })
    }

    /// Sets how long to wait before a retry.
    #[must_use]
    pub fn with_retry_after(self, delay: Duration) -> Self {
        self.modify_inner(|inner| inner.retry_after = Some(delay))
    }

    /// Marks the error as reported to the sender of the message.
    #[must_use]
    pub fn mark_reported(self) -> Self {
        self.modify_inner(|inner| inner.is_reported = true)
    }

    /// Sets the hook and the plugin that returned the error. An error that already has them is unchanged, so that it
    /// names the innermost hook.
    #[must_use]
    pub(crate) fn with_origin(self, hook: &'static str, plugin: &Arc<str>) -> Self {
        if self.0.origin.is_some() {
            return self;
        }
        self.modify_inner(|inner| {
            inner.origin = Some(HookOrigin {
                hook,
                plugin: Arc::clone(plugin),
            });
        })
    }

    /// Removes secrets from the message and the details.
    #[must_use]
    pub(crate) fn redact(self, redactor: &Redactor) -> Self {
        self.modify_inner(|inner| {
            inner.message = redactor.redact(&inner.message).into_owned();
            let details = inner.details.values_mut();
            details.for_each(|value| redactor.redact_value(value));
        })
    }

    fn modify_inner(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the message, without the kind.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the structured details, which may be empty.
    pub fn details(&self) -> &Map<String, Value> {
        &self.0.details
    }

    /// Returns how long to wait before a retry, if known.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Returns whether the error was reported to the sender of the message.
    pub fn is_reported(&self) -> bool {
        self.0.is_reported
    }

    /// Returns the hook and plugin that the error came from. `None` if no hook returned it.
    pub fn origin(&self) -> Option<&HookOrigin> {
        self.0.origin.as_ref()
    }

    /// Returns the plugin's own error if it has the type `E`.
    pub fn downcast_ref<E: StdError + 'static>(&self) -> Option<&E> {
        self.0.source.as_deref()?.downcast_ref()
    }
}

impl fmt::Display for Error {
    /// Writes `[kind] message`. A wrapped error of another type is written without the kind.
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

/// Converts every error type, for use with `?`. Because of this impl, [`Error`] itself cannot implement
/// `std::error::Error`. Use `BoxError::from` where a `std` error is needed.
impl<E: StdError + Send + Sync + 'static> From<E> for Error {
    fn from(error: E) -> Self {
        Self::from_boxed(Box::new(error))
    }
}

/// A wrapper that passes an [`Error`] through code that handles boxed errors.
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
