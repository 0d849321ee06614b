//! Calls of models: retried, timed, cancelled, and never more than one line of error.
//!
//! A call is a stream of events. Nothing is sent before the stream is polled, and dropping it closes the
//! connection at once. Timers run only while the stream waits for the server, so a slow reader is not cut off.
//!
//! | limit | default | what happens |
//! |---|---|---|
//! | connection | 15 s | another try |
//! | first event | 300 s (600 s for an answer in one piece) | another try |
//! | silence between events | 120 s | another try, if nothing was handed out yet |
//! | the whole call of one model | the setting `model_timeout_seconds` | next model |

use std::sync::Arc;
use std::time::Duration;

use bub_settings::{Redactor, Settings, core};
use futures_util::StreamExt;
use tokio_util::sync::CancellationToken;

use crate::http::{Http, HttpOptions};
use crate::{Accumulator, ChatRequest, Completion, Endpoint, ModelError};

mod attempt;
mod backoff;
mod call;
mod endpoint;
mod fetch;
mod retry_after;
mod transport;

pub use backoff::Backoff;
pub(crate) use call::Call;
pub(crate) use transport::innermost;

use crate::fallback::{Candidates, ModelStream};

/// Calls models. Clones share their connections; use one per process.
#[derive(Clone)]
pub struct ModelClient {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) http: Http,
    pub(crate) redactor: Redactor,
}

/// How one call is made.
#[derive(Clone, Debug)]
pub struct CallOptions {
    /// How often one model is asked before it counts as failed; at least once.
    pub attempts: u32,
    /// The waits between those.
    pub backoff: Backoff,
    /// The longest silence before the first event of a stream.
    pub first_event_timeout: Duration,
    /// The longest silence between events of a stream.
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
            first_event_timeout: Duration::from_mins(5),
            idle_timeout: Duration::from_mins(2),
            timeout: None,
            cancel: CancellationToken::new(),
            restartable: false,
        }
    }
}

impl CallOptions {
    /// The defaults, with the limit of the setting `model_timeout_seconds`.
    pub fn from_settings(settings: &Settings) -> Self {
        Self { timeout: settings.get(&core::MODEL_TIMEOUT), ..Self::default() }
    }

    /// The silence that is borne before the first event.
    pub(crate) fn patience(&self, request: &ChatRequest) -> Duration {
        // A whole answer comes when the model has finished thinking it.
        if request.stream { self.first_event_timeout } else { self.first_event_timeout.saturating_mul(2) }
    }
}

impl ModelClient {
    /// A client that has not opened anything yet. Error texts go through the redactor.
    pub fn new(options: HttpOptions, redactor: Redactor) -> Self {
        for url in options.proxies.secrets() {
            redactor.register(url);
        }
        Self { inner: Arc::new(Inner { http: Http::new(options), redactor }) }
    }

    /// A client with the redactor of these settings, and the proxies of their environment.
    pub fn from_settings(settings: &Settings) -> Self {
        Self::new(HttpOptions::from_environment(settings.environment()), settings.redactor().clone())
    }

    /// Calls one model.
    pub fn stream(&self, endpoint: Endpoint, request: ChatRequest, options: CallOptions) -> ModelStream {
        self.stream_first(Candidates::one(endpoint), request, options)
    }

    /// Calls the first of the candidates that answers; `request.model` is set to that of each.
    pub fn stream_first(
        &self,
        candidates: Candidates,
        request: ChatRequest,
        options: CallOptions,
    ) -> ModelStream {
        ModelStream::new(Arc::clone(&self.inner), candidates, request, options)
    }

    /// Calls one model and waits for the whole answer. A stream that breaks is tried again.
    pub async fn complete(
        &self,
        endpoint: Endpoint,
        request: ChatRequest,
        options: CallOptions,
    ) -> Result<Completion, ModelError> {
        self.complete_first(Candidates::one(endpoint), request, options).await
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
        f.debug_struct("ModelClient").field("options", self.inner.http.options()).finish_non_exhaustive()
    }
}
