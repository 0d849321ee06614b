//! Fallback models: the candidates of a call are tried in order until one of them answers. They are the chosen model
//! and its fallbacks.
//!
//! - The endpoint of a candidate is looked up right before its first attempt, so a missing key of a fallback does not
//!   affect earlier candidates.
//! - A candidate is retried after temporary errors. After other errors, or if the retries fail, the next candidate is
//!   tried. Two errors end the call at once: the conversation is too long, or the call was cancelled.
//! - An answer that fails in its text is not retried unless the caller can discard text
//!   ([`CallOptions::restartable`]). An answer that fails in its reasoning or in a tool call is retried.
//! - If all candidates fail, the error is that of the first one. It contains the errors of the others.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use futures_core::Stream;
use futures_util::stream;
use parking_lot::Mutex;

use crate::client::{CallOptions, Inner, ModelCall};
use crate::{ChatRequest, Endpoint, ModelError, ModelEvent, ModelId, Models, Result};

/// A lookup of endpoints, used right before a model call.
#[async_trait]
pub trait EndpointSource: Send + Sync {
    /// Returns the endpoint of a model: its base URL, wire format and credentials.
    async fn endpoint(&self, id: &ModelId) -> Result<Endpoint>;

    /// Returns an endpoint with other credentials after the provider rejected the credentials of `refused`. Returns
    /// `None` if no other credentials are available.
    async fn renew_endpoint(&self, refused: &Endpoint) -> Result<Option<Endpoint>>;
}

#[async_trait]
impl EndpointSource for Models {
    async fn endpoint(&self, id: &ModelId) -> Result<Endpoint> {
        Ok(Self::endpoint(self, id).await?)
    }

    async fn renew_endpoint(&self, refused: &Endpoint) -> Result<Option<Endpoint>> {
        Ok(Self::renew_endpoint(self, refused).await?)
    }
}

/// Models to try, in order.
#[derive(Clone)]
pub struct Candidates {
    ready: Option<Endpoint>,
    pending: VecDeque<ModelId>,
    pub(crate) source: Option<Arc<dyn EndpointSource>>,
}

impl Candidates {
    /// Creates a list of `models`. Their endpoints are looked up in `source` when they are tried.
    pub fn new(source: Arc<dyn EndpointSource>, models: impl IntoIterator<Item = ModelId>) -> Self {
        Self {
            ready: None,
            pending: models.into_iter().collect(),
            source: Some(source),
        }
    }

    /// Returns whether another model is left to try.
    pub(crate) fn has_more(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Removes the next model to try and returns its endpoint. Returns `None` if no model is left.
    pub(crate) async fn next_endpoint(&mut self) -> Option<Result<Endpoint>> {
        if let Some(endpoint) = self.ready.take() {
            return Some(Ok(endpoint));
        }
        let id = self.pending.pop_front()?;
        let endpoint_result = self.source.as_ref()?.endpoint(&id).await;
        Some(endpoint_result.map_err(|error| with_model_name(error, &id)))
    }
}

impl From<Endpoint> for Candidates {
    fn from(endpoint: Endpoint) -> Self {
        Self {
            ready: Some(endpoint),
            pending: VecDeque::new(),
            source: None,
        }
    }
}

/// Stream of the events of a model call. Dropping the stream closes the connection.
pub struct ModelEventStream {
    events: Pin<Box<dyn Stream<Item = Result<ModelEvent>> + Send>>,
    current_model: Arc<Mutex<Option<ModelId>>>,
}

impl ModelEventStream {
    pub(crate) fn new(
        inner: Arc<Inner>,
        candidates: Candidates,
        request: ChatRequest,
        options: CallOptions,
    ) -> Self {
        let current_model = Arc::default();
        let call = ModelCall::new(inner, candidates, request, options, &current_model);
        let events = stream::unfold(call, |mut call| async move {
            Some((call.next_event().await?, call))
        });
        Self {
            events: Box::pin(events),
            current_model,
        }
    }

    /// Creates a stream from events, for an answer that does not come from a provider.
    pub fn from_events(
        model: ModelId,
        events: impl IntoIterator<Item = ModelEvent, IntoIter: Send + 'static>,
    ) -> Self {
        let events = stream::iter(events.into_iter().map(Ok));
        Self {
            events: Box::pin(events),
            current_model: Arc::new(Mutex::new(Some(model))),
        }
    }

    /// Returns the model that answers, or the last model that was tried; `None` before the first attempt.
    pub fn model(&self) -> Option<ModelId> {
        self.current_model.lock().clone()
    }
}

impl Stream for ModelEventStream {
    type Item = Result<ModelEvent>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.events.as_mut().poll_next(context)
    }
}

/// Adds the model to an error, unless the error names a model already.
pub(crate) fn with_model_name(mut error: ModelError, id: &ModelId) -> ModelError {
    error.provider.get_or_insert_with(|| id.to_string());
    error
}
