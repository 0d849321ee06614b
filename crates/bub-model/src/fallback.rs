//! Several models for one call: tried in order until the first byte of an answer.
//!
//! - A candidate is looked up when its turn comes, so one without a key harms nobody before it.
//! - One model is tried again for errors that pass; then, and for every other error that another model may not
//!   have, the next one is asked. A conversation that is too long, and a cancelled call, end it.
//! - Once anything was handed to the caller, nothing is tried again, unless the caller throws it away
//!   ([`CallOptions::restartable`]).
//! - The error of the first candidate is the one reported, with what became of the others.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_util::future::BoxFuture;
use futures_util::stream;

use crate::client::{CallOptions, Inner, ModelCall};
use crate::{ChatRequest, Endpoint, ModelError, ModelEvent, ModelId, Models};

/// Looks up what a call of a model needs, when it is needed.
pub trait EndpointSource: Send + Sync {
    /// Address and credentials of a model.
    fn endpoint<'a>(&'a self, id: &'a ModelId) -> BoxFuture<'a, Result<Endpoint, ModelError>>;

    /// The same with other credentials, after these were refused; `None` when there are no others.
    fn renew<'a>(
        &'a self,
        refused: &'a Endpoint,
    ) -> BoxFuture<'a, Result<Option<Endpoint>, ModelError>>;
}

impl EndpointSource for Models {
    fn endpoint<'a>(&'a self, id: &'a ModelId) -> BoxFuture<'a, Result<Endpoint, ModelError>> {
        Box::pin(async { Self::endpoint(self, id).await.map_err(ModelError::from) })
    }

    fn renew<'a>(
        &'a self,
        refused: &'a Endpoint,
    ) -> BoxFuture<'a, Result<Option<Endpoint>, ModelError>> {
        Box::pin(async { Self::renew(self, refused).await.map_err(ModelError::from) })
    }
}

/// The models to try, in order.
#[derive(Clone)]
pub struct Candidates {
    ready: Option<Endpoint>,
    later: VecDeque<ModelId>,
    pub(crate) source: Option<Arc<dyn EndpointSource>>,
}

impl Candidates {
    /// One model, ready to be called.
    pub fn one(endpoint: Endpoint) -> Self {
        Self {
            ready: Some(endpoint),
            later: VecDeque::new(),
            source: None,
        }
    }

    /// Models that are looked up when their turn comes.
    pub fn new(source: Arc<dyn EndpointSource>, models: impl IntoIterator<Item = ModelId>) -> Self {
        Self {
            ready: None,
            later: models.into_iter().collect(),
            source: Some(source),
        }
    }

    /// Whether another one follows.
    pub(crate) fn more(&self) -> bool {
        !self.later.is_empty()
    }

    /// The next one, looked up.
    pub(crate) async fn next(&mut self) -> Option<Result<Endpoint, ModelError>> {
        if let Some(endpoint) = self.ready.take() {
            return Some(Ok(endpoint));
        }
        let id = self.later.pop_front()?;
        let found = self.source.as_ref()?.endpoint(&id).await;
        Some(found.map_err(|error| with_model_name(error, &id)))
    }
}

/// The events of a call. Dropping it closes the connection.
pub struct ModelEventStream {
    events: Pin<Box<dyn Stream<Item = Result<ModelEvent, ModelError>> + Send>>,
    answering: Arc<Mutex<Option<ModelId>>>,
}

impl ModelEventStream {
    pub(crate) fn new(
        inner: Arc<Inner>,
        candidates: Candidates,
        request: ChatRequest,
        options: CallOptions,
    ) -> Self {
        let answering = Arc::default();
        let call = ModelCall::new(
            inner,
            candidates,
            request,
            (options, Arc::clone(&answering)),
        );
        let events = stream::unfold(
            call,
            |mut call| async move { Some((call.next().await?, call)) },
        );
        Self {
            events: Box::pin(events),
            answering,
        }
    }

    /// A call that was answered without a network, by a script or another program.
    pub fn answered(
        model: ModelId,
        events: impl IntoIterator<Item = ModelEvent, IntoIter: Send + 'static>,
    ) -> Self {
        let events = stream::iter(events.into_iter().map(Ok));
        Self {
            events: Box::pin(events),
            answering: Arc::new(Mutex::new(Some(model))),
        }
    }

    /// The model that answers, or was asked last.
    pub fn model(&self) -> Option<ModelId> {
        self.answering
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Stream for ModelEventStream {
    type Item = Result<ModelEvent, ModelError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.events.as_mut().poll_next(context)
    }
}

/// Adds the model to an error that does not know it.
pub(crate) fn with_model_name(mut error: ModelError, id: &ModelId) -> ModelError {
    error.provider.get_or_insert_with(|| id.to_string());
    error
}
