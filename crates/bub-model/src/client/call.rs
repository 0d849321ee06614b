//! A model call with all its attempts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bub_settings::Redactor;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{Instrument as _, Span, error_span};

use super::attempt::Attempt;
use super::hints::add_hints;
use super::transport::{cancelled_error, is_closed_connection};
use super::{CallOptions, Inner};
use crate::error::{ModelError, ModelErrorKind, RecoveryAction, Result};
use crate::fallback::{Candidates, with_model_name};
use crate::{ChatRequest, Endpoint, ModelEvent, ModelId, Retry};

/// Maximum delay that a server may request if a fallback model is left. If it requests more, the fallback is called.
const MAX_RETRY_WAIT_WITH_FALLBACK: Duration = Duration::from_secs(10);

/// Maximum attempts per model after a timeout or an empty answer. A further attempt would likely end in the same way,
/// and each timeout takes minutes.
const MAX_SILENT_ATTEMPTS: u32 = 2;

/// A model call in progress: the models to try, the current attempt and the events to emit.
pub(crate) struct ModelCall {
    inner: Arc<Inner>,
    candidates: Candidates,
    request: ChatRequest,
    /// Whether the caller requests a stream. A server without streaming gets a request for a complete answer.
    wants_stream: bool,
    options: CallOptions,
    current_model: Arc<Mutex<Option<ModelId>>>,
    /// The model that the call tries now: the requested one or a fallback.
    candidate: Option<CandidateState>,
    /// The current attempt; `None` until its response has started.
    attempt: Option<Attempt>,
    pending: VecDeque<ModelEvent>,
    /// The span of the current attempt.
    span: Span,
    /// Start time of the next attempt.
    resume_at: Option<Instant>,
    /// Errors of the models that failed.
    failures: Vec<ModelError>,
    /// The last part of the answer that the caller has received.
    emitted: EmittedPart,
    /// Error of the attempt, handled after the pending events are emitted.
    attempt_error: Option<ModelError>,
    /// Error that ends the call, returned after the pending events are emitted.
    final_error: Option<ModelError>,
    /// Whether the answer is complete or the call has failed.
    done: bool,
}

/// The last part of an answer that a call has emitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EmittedPart {
    #[default]
    Nothing,
    /// Text, which users may have seen.
    Text,
    /// Reasoning or a part of a tool call. Callers use these only when the answer is complete.
    Internal,
}

/// The model that a call tries now, and the number of attempts so far.
struct CandidateState {
    endpoint: Endpoint,
    attempts: u32,
    has_renewed: bool,
    deadline: Option<Instant>,
}

impl ModelCall {
    pub(crate) fn new(
        inner: Arc<Inner>,
        candidates: Candidates,
        request: ChatRequest,
        options: CallOptions,
        current_model: &Arc<Mutex<Option<ModelId>>>,
    ) -> Self {
        Self {
            inner,
            candidates,
            wants_stream: request.stream,
            request,
            options,
            current_model: Arc::clone(current_model),
            candidate: None,
            attempt: None,
            span: Span::none(),
            pending: VecDeque::new(),
            resume_at: None,
            failures: Vec::new(),
            emitted: EmittedPart::default(),
            attempt_error: None,
            final_error: None,
            done: false,
        }
    }

    /// Returns the next event, or `None` after the last one. No event follows an error.
    pub(crate) async fn next_event(&mut self) -> Option<Result<ModelEvent>> {
        let cancel = self.options.cancel.clone();
        let item = tokio::select! {
            biased;
            () = cancel.cancelled(), if !self.is_delivered() => Some(Err(cancelled_error())),
            item = self.drive_to_next_event() => item,
        };
        if let Some(Err(_)) = &item {
            // Close the connection now and not when the caller drops the stream.
            self.attempt = None;
            self.pending.clear();
            self.done = true;
        }
        item
    }

    /// Returns whether the caller has received the complete answer. The call can then no longer be cancelled.
    fn is_delivered(&self) -> bool {
        self.done && self.pending.is_empty()
    }

    /// Returns the next event. Starts attempts, retries and fallbacks as needed, but does not handle cancellation.
    async fn drive_to_next_event(&mut self) -> Option<Result<ModelEvent>> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                match event {
                    ModelEvent::Restart => self.emitted = EmittedPart::Nothing,
                    ModelEvent::Retry(_) => {}
                    ModelEvent::Text(_) => self.emitted = EmittedPart::Text,
                    _ => self.emitted = EmittedPart::Internal,
                }
                return Some(Ok(event));
            }
            if let Some(error) = self.final_error.take() {
                return Some(Err(error));
            }
            if let Some(error) = self.attempt_error.take() {
                let span = self.span.clone();
                self.final_error = self
                    .handle_attempt_error(error)
                    .instrument(span)
                    .await
                    .err();
                continue;
            }
            if self.done {
                if let Some(attempt) = self.attempt.take() {
                    attempt.drain().await;
                }
                return None;
            }
            match self.advance_candidate().await {
                Ok(is_complete) => self.done = is_complete,
                // Emit earlier events first. Otherwise, whether the call may be retried would depend on how the
                // network splits the data.
                Err(error) => self.attempt_error = Some(error),
            }
        }
    }

    /// Reads from the current attempt, within the deadline of its model. Waits for the delay before a retry, and
    /// chooses the next model if the call has no current one. Returns whether the answer is complete.
    async fn advance_candidate(&mut self) -> Result<bool> {
        if let Some(until) = self.resume_at {
            tokio::time::sleep_until(until).await;
            self.resume_at = None;
        }
        if self.candidate.is_none() {
            self.start_candidate().await?;
        }
        let Some(deadline) = self.candidate.as_ref().and_then(|state| state.deadline) else {
            return self.poll_attempt().await;
        };
        let polled = tokio::time::timeout_at(deadline, self.poll_attempt()).await;
        polled.unwrap_or_else(|_| {
            let seconds = self.options.timeout.unwrap_or_default().as_secs_f64();
            let message = format!(
                "the call took longer than {seconds} s; increase `model_timeout_seconds` if the model needs longer"
            );
            let error = ModelError::timeout(message);
            Err(error.with_action(RecoveryAction::NextModel))
        })
    }

    /// Reads from the current attempt, or sends the request of a new attempt. Returns whether the answer is complete.
    async fn poll_attempt(&mut self) -> Result<bool> {
        if let Some(attempt) = &mut self.attempt {
            let reading = attempt.read_events(&mut self.pending);
            return reading.instrument(self.span.clone()).await;
        }
        let Some(candidate) = &mut self.candidate else {
            return Ok(true);
        };
        candidate.attempts += 1;
        self.span =
            error_span!("model_call", model = %candidate.endpoint.id, attempt = candidate.attempts);
        self.request.stream = self.wants_stream && candidate.endpoint.quirks.streaming;
        let opening = async {
            tracing::debug!("model.call");
            Attempt::open(
                &self.inner,
                &candidate.endpoint,
                &self.request,
                &self.options,
            )
            .await
        };
        let attempt = opening.instrument(self.span.clone()).await?;
        self.attempt = Some(attempt);
        Ok(false)
    }

    /// Looks up the endpoint of the next model to try and makes it the current candidate.
    async fn start_candidate(&mut self) -> Result<()> {
        let endpoint = self.candidates.next_endpoint().await.unwrap_or_else(|| {
            let message = "no model to call: the list of candidates is empty; set `model`";
            Err(ModelError::setup(message))
        })?;
        endpoint.id.model().clone_into(&mut self.request.model);
        *self.current_model.lock() = Some(endpoint.id.clone());
        let deadline = self.options.timeout.map(|timeout| Instant::now() + timeout);
        self.candidate = Some(CandidateState {
            endpoint,
            attempts: 0,
            has_renewed: false,
            deadline,
        });
        Ok(())
    }

    /// Handles an error of an attempt: prepares a retry or the next model, or returns the error that ends the call.
    async fn handle_attempt_error(&mut self, error: ModelError) -> Result<()> {
        self.attempt = None;
        let error = self.annotated_error(error);
        let emitted = std::mem::take(&mut self.emitted);
        if emitted == EmittedPart::Text && !self.options.restartable {
            return Err(error);
        }
        if emitted != EmittedPart::Nothing {
            self.pending.push_back(ModelEvent::Restart);
        }
        if error.action == RecoveryAction::Reauthenticate && self.renew_credentials().await {
            return Ok(());
        }
        if let Some((attempt, delay)) = self.next_retry(&error) {
            if attempt == 2 && is_closed_connection(&error) {
                // The connection was probably an idle one; a new one is likely to work.
                tracing::debug!(%error, "model.reconnect");
                return Ok(());
            }
            tracing::warn!(delay_ms = delay.as_millis(), %error, "model.retry");
            self.resume_at = Some(Instant::now() + delay);
            self.announce_retry(attempt, delay, error);
            return Ok(());
        }
        let error = self.with_attempt_count(error);
        self.candidate = None;
        let can_shrink = error.action == RecoveryAction::ShrinkContext;
        if !can_shrink && self.candidates.has_more() {
            tracing::warn!(%error, "model.fallback");
            self.failures.push(error.clone());
            self.announce_retry(1, Duration::ZERO, error);
            return Ok(());
        }
        let mut errors = std::mem::take(&mut self.failures);
        // The error of the first model comes first, unless the caller can act on the last one.
        errors.insert(if can_shrink { 0 } else { errors.len() }, error);
        let mut first = errors.remove(0);
        first.others.extend(errors);
        Err(first)
    }

    fn announce_retry(&mut self, attempt: u32, delay: Duration, error: ModelError) {
        let error = Box::new(error);
        self.pending.push_back(ModelEvent::Retry(Retry {
            attempt,
            delay,
            error,
        }));
    }

    /// Adds two hints to the message of a temporary error: the number of attempts, if there were several, and when to
    /// try again.
    fn with_attempt_count(&self, mut error: ModelError) -> ModelError {
        if error.action != RecoveryAction::Retry {
            return error;
        }
        let attempts = self.candidate.as_ref().map_or(0, |state| state.attempts);
        if attempts > 1 {
            error.append(&format!("failed after {attempts} attempts"));
        }
        // Errors of other kinds already name a setting to check.
        let is_remote = matches!(
            error.kind,
            ModelErrorKind::Provider | ModelErrorKind::Truncated | ModelErrorKind::Empty
        );
        if let Some(delay) = error.retry_after.filter(|delay| !delay.is_zero()) {
            error.append(&format!("try again in {} s", delay.as_secs_f64().ceil()));
        } else if is_remote {
            error.append("try again later");
        }
        error
    }

    /// Returns the number and the delay of the next attempt with the current model. Returns `None` if the model is not
    /// retried.
    fn next_retry(&self, error: &ModelError) -> Option<(u32, Duration)> {
        let candidate = self.candidate.as_ref()?;
        let max_attempts = match error.kind {
            ModelErrorKind::Timeout | ModelErrorKind::Empty => {
                self.options.attempts.min(MAX_SILENT_ATTEMPTS)
            }
            _ => self.options.attempts,
        };
        if error.action != RecoveryAction::Retry || candidate.attempts >= max_attempts {
            return None;
        }
        let mut backoff = self.options.backoff;
        if self.candidates.has_more() {
            backoff.max_retry_after = backoff.max_retry_after.min(MAX_RETRY_WAIT_WITH_FALLBACK);
        }
        let delay = backoff.retry_delay(candidate.attempts, error.retry_after)?;
        let in_time = candidate
            .deadline
            .is_none_or(|deadline| Instant::now() + delay < deadline);
        in_time.then_some((candidate.attempts + 1, delay))
    }

    /// Replaces the rejected credentials of the current model, at most once per model. Returns whether they were
    /// replaced.
    async fn renew_credentials(&mut self) -> bool {
        let (Some(candidate), Some(source)) = (&mut self.candidate, &self.candidates.source) else {
            return false;
        };
        if std::mem::replace(&mut candidate.has_renewed, true) {
            return false;
        }
        match source.renew_endpoint(&candidate.endpoint).await {
            Ok(Some(endpoint)) => {
                candidate.endpoint = endpoint;
                true
            }
            Ok(None) => false,
            Err(error) => {
                let error = error.redacted(&self.inner.redactor);
                tracing::warn!(%error, "model.credential_refresh_failed");
                false
            }
        }
    }

    /// Returns an error with hints and the name of the model, and with secrets redacted.
    fn annotated_error(&self, error: ModelError) -> ModelError {
        let error = error.redacted(&self.inner.redactor);
        let Some(candidate) = &self.candidate else {
            return error;
        };
        let error = add_hints(error, &candidate.endpoint);
        // The redactor knows the keys of the settings, but the endpoint may come from elsewhere. Not every header is
        // secret, so header values are redacted in this error only.
        let header_redactor = Redactor::new();
        for (_, value) in &candidate.endpoint.headers {
            header_redactor.register(value);
            if let Some((_, token)) = value.expose().split_once(' ') {
                header_redactor.register(&token.into());
            }
        }
        with_model_name(error.redacted(&header_redactor), &candidate.endpoint.id)
    }
}
