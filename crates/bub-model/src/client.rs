//! Model calls with retries, timeouts and cancellation.
//!
//! A call is a stream of events. Nothing is sent before the stream is polled, and dropping the stream closes the
//! connection immediately. Timers run only while the stream waits for the server, so a slow consumer does not cause
//! timeouts.
//!
//! | Timeout | Default | Consequence |
//! |---|---|---|
//! | connecting | 15 s | retry |
//! | no data before or between events | 120 s (`model_idle_timeout_seconds`) | one retry, unless text was emitted last |
//! | only comments and pings, or a call without streaming | 5 × the idle timeout | one retry, unless text was emitted last |
//! | call of one model, retries included | none (`model_timeout_seconds`) | next model |
//!
//! A call that fails in reasoning or in a tool call is retried, after a `Restart` event. If the caller can discard text
//! ([`CallOptions::restartable`]), a call is also retried if it fails in its text.

use std::sync::Arc;
use std::time::Duration;

use bub_settings::{Redactor, SettingSource, Settings};
use futures_util::StreamExt;
use tokio_util::sync::CancellationToken;

use crate::client_args::ClientArgs;
use crate::http::{HttpClient, HttpOptions};
use crate::{Accumulator, ChatRequest, Completion, Result, settings::ModelSettings};

mod attempt;
mod backoff;
mod body;
mod call;
mod fetch;
mod hints;
mod retry_after;
mod transcribe;
mod transport;

pub use backoff::Backoff;
pub use body::ResponseBody;
pub(crate) use call::ModelCall;
pub use transcribe::Recording;
pub(crate) use transport::innermost_cause;

use crate::fallback::{Candidates, ModelEventStream};

/// Client for model calls. Clones share connections; use one client per process.
#[derive(Clone)]
pub struct ModelClient {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) http: HttpClient,
    pub(crate) redactor: Redactor,
}

/// Options of a model call.
#[derive(Clone, Debug)]
pub struct CallOptions {
    /// Maximum number of attempts per model; at least one attempt is made. Default: 3.
    pub attempts: u32,
    /// Delays between the attempts.
    pub backoff: Backoff,
    /// Maximum time without data before the first event and between events. Default: two minutes.
    pub idle_timeout: Duration,
    /// Timeout per model, retries included. Default: none.
    pub timeout: Option<Duration>,
    /// Cancelling this token ends the call with an error of kind `Cancelled`.
    pub cancel: CancellationToken,
    /// Whether the caller can discard text when it receives [`ModelEvent::Restart`]. If so, a stream that is
    /// interrupted in its text is retried too. Default: false.
    ///
    /// [`ModelEvent::Restart`]: crate::ModelEvent::Restart
    pub restartable: bool,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self {
            attempts: 3,
            backoff: Backoff::default(),
            idle_timeout: Duration::from_mins(2),
            timeout: None,
            cancel: CancellationToken::new(),
            restartable: false,
        }
    }
}

impl CallOptions {
    /// Creates options from the settings `model_timeout_seconds`, `model_idle_timeout_seconds` and `client_args`.
    pub fn from_settings(settings: &Settings) -> Self {
        let (defaults, args) = (Self::default(), ClientArgs::from_settings(settings));
        // An explicit setting takes precedence over `client_args`, which were written for the HTTP clients of the
        // Python version.
        let is_set = settings
            .origin("model_idle_timeout_seconds")
            .is_some_and(|origin| origin != SettingSource::Default);
        let idle = settings.get(ModelSettings::MODEL_IDLE_TIMEOUT);
        Self {
            attempts: args.attempts.unwrap_or(defaults.attempts),
            idle_timeout: args.timeout.filter(|_| !is_set).unwrap_or(idle),
            timeout: settings.get(ModelSettings::MODEL_TIMEOUT),
            ..defaults
        }
    }

    /// Returns the maximum time without data before the first event.
    pub(crate) fn first_event_timeout(&self, request: &ChatRequest) -> Duration {
        // Without streaming, no data arrives until the model has finished.
        if request.stream {
            self.idle_timeout
        } else {
            self.idle_timeout.saturating_mul(5)
        }
    }
}

impl ModelClient {
    /// Creates a client without opening connections. The redactor removes secrets from error texts.
    pub fn new(options: HttpOptions, redactor: Redactor) -> Self {
        for secret in options.proxies.secrets() {
            redactor.register(&secret);
        }
        Self {
            inner: Arc::new(Inner {
                http: HttpClient::new(options),
                redactor,
            }),
        }
    }

    /// Creates a client with the redactor of the settings, and with the proxies and certificates of their environment.
    pub fn from_settings(settings: &Settings) -> Self {
        Self::new(
            HttpOptions::from_environment(settings.environment()),
            settings.redactor().clone(),
        )
    }

    /// Calls one model, or the models of [`Candidates`] in order until one answers, and returns the events of the answer.
    /// Replaces `request.model` with the model that is called.
    pub fn stream(
        &self,
        candidates: impl Into<Candidates>,
        request: ChatRequest,
        options: CallOptions,
    ) -> ModelEventStream {
        ModelEventStream::new(Arc::clone(&self.inner), candidates.into(), request, options)
    }

    /// Calls models like [`stream`](Self::stream), and waits for the complete answer. Retries an interrupted stream.
    pub async fn complete(
        &self,
        candidates: impl Into<Candidates>,
        request: ChatRequest,
        mut options: CallOptions,
    ) -> Result<Completion> {
        options.restartable = true;
        let mut events = self.stream(candidates, request, options);
        let mut answer = Accumulator::new();
        while let Some(event) = events.next().await {
            answer.push(event?);
        }
        answer.finish()
    }
}

impl std::fmt::Debug for ModelClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelClient")
            .field("options", self.inner.http.options())
            .finish_non_exhaustive()
    }
}
