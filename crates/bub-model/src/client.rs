//! Calls of models: retried, timed, cancelled, and never more than one line of error.
//!
//! A call is a stream of events. Nothing is sent before the stream is polled, and dropping it closes the
//! connection at once. Timers run only while the stream waits for the server, so a slow reader is not cut off.
//!
//! | limit | default | what happens |
//! |---|---|---|
//! | connection | 15 s | another try |
//! | silence before and between events | 120 s, the setting `model_idle_timeout_seconds` | one more try, if nothing was handed out yet |
//! | nothing but comments and pings; an answer in one piece | five times that | the same |
//! | the whole call of one model | the setting `model_timeout_seconds` | next model |

use std::sync::Arc;
use std::time::Duration;

use bub_settings::{Redactor, SettingSource, Settings};
use futures_util::StreamExt;
use tokio_util::sync::CancellationToken;

use crate::client_args::ClientArgs;
use crate::http::{HttpClient, HttpOptions};
use crate::{
    Accumulator, ChatRequest, Completion, Endpoint, ModelError,
    settings::{MODEL_IDLE_TIMEOUT, MODEL_TIMEOUT},
};

mod attempt;
mod backoff;
mod body;
mod call;
mod endpoint;
mod fetch;
mod hints;
mod retry_after;
mod transport;

pub use backoff::Backoff;
pub use body::ResponseBody;
pub(crate) use call::ModelCall;
pub(crate) use transport::innermost;

use crate::fallback::{Candidates, ModelEventStream};

/// Calls models. Clones share their connections; use one per process.
#[derive(Clone)]
pub struct ModelClient {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) http: HttpClient,
    pub(crate) redactor: Redactor,
}

/// How one call is made.
#[derive(Clone, Debug)]
pub struct CallOptions {
    /// How often one model is asked before it counts as failed; at least once.
    pub attempts: u32,
    /// The waits between those.
    pub backoff: Backoff,
    /// The longest silence before the first and between any two events of a stream.
    pub idle_timeout: Duration,
    /// The longest time for one model, retries included.
    pub timeout: Option<Duration>,
    /// Ends the call with an error of kind `Cancelled`.
    pub cancel: CancellationToken,
    /// The caller promises to throw away everything it got when it sees [`ModelEvent::Restart`]: then a
    /// stream that breaks half way is tried again.
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
    /// The defaults, with the limits of the settings `model_timeout_seconds` and `model_idle_timeout_seconds`, and
    /// what `client_args` says about them.
    pub fn from_settings(settings: &Settings) -> Self {
        let (usual, args) = (Self::default(), ClientArgs::from_settings(settings));
        // A value that somebody set beats `client_args`, which came with another client.
        let set = settings
            .origin("model_idle_timeout_seconds")
            .is_some_and(|origin| origin != SettingSource::Default);
        let idle = settings.get(&MODEL_IDLE_TIMEOUT);
        Self {
            attempts: args.attempts.unwrap_or(usual.attempts),
            idle_timeout: args.timeout.filter(|_| !set).unwrap_or(idle),
            timeout: settings.get(&MODEL_TIMEOUT),
            ..usual
        }
    }

    /// The silence that is borne before the first event.
    pub(crate) fn first_event_timeout(&self, request: &ChatRequest) -> Duration {
        // A whole answer comes when the model has finished thinking it.
        if request.stream {
            self.idle_timeout
        } else {
            self.idle_timeout.saturating_mul(5)
        }
    }
}

impl ModelClient {
    /// A client that has not opened anything yet. Error texts go through the redactor.
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

    /// A client with the redactor of these settings, and the proxies of their environment.
    pub fn from_settings(settings: &Settings) -> Self {
        Self::new(
            HttpOptions::from_environment(settings.environment()),
            settings.redactor().clone(),
        )
    }

    /// Calls one model.
    pub fn stream(
        &self,
        endpoint: Endpoint,
        request: ChatRequest,
        options: CallOptions,
    ) -> ModelEventStream {
        self.stream_first(Candidates::one(endpoint), request, options)
    }

    /// Calls the first of the candidates that answers; `request.model` is set to that of each.
    pub fn stream_first(
        &self,
        candidates: Candidates,
        request: ChatRequest,
        options: CallOptions,
    ) -> ModelEventStream {
        ModelEventStream::new(Arc::clone(&self.inner), candidates, request, options)
    }

    /// Calls one model and waits for the whole answer. A stream that breaks is tried again.
    pub async fn complete(
        &self,
        endpoint: Endpoint,
        request: ChatRequest,
        options: CallOptions,
    ) -> Result<Completion, ModelError> {
        self.complete_first(Candidates::one(endpoint), request, options)
            .await
    }

    /// Calls the first of the candidates that answers and waits for the whole answer.
    pub async fn complete_first(
        &self,
        candidates: Candidates,
        request: ChatRequest,
        mut options: CallOptions,
    ) -> Result<Completion, ModelError> {
        options.restartable = true;
        let mut events = self.stream_first(candidates, request, options);
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
