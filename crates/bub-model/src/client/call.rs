//! A model call with all its attempts.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bub_settings::Redactor;
use tokio::time::Instant;
use tracing::{Instrument as _, Span, error_span};

use super::attempt::{Attempt, ReadStatus};
use super::hints::add_hints;
use super::transport::cancelled_error;
use super::{CallOptions, Inner};
use crate::error::{ModelError, ModelErrorKind, RecoveryAction};
use crate::fallback::{Candidates, with_model_name};
use crate::{ChatRequest, Endpoint, ModelEvent, ModelId, Retry};

/// Maximum delay that a server may request if other candidates are left.
const MAX_RETRY_WAIT_WITH_FALLBACK: Duration = Duration::from_secs(10);

/// Maximum attempts after timeouts and empty answers. Each attempt takes the full idle timeout or likely fails again.
const MAX_SILENT_ATTEMPTS: u32 = 2;

/// State of a model call.
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
    /// The current attempt, after its response has started.
    attempt: Option<Attempt>,
    pending: VecDeque<ModelEvent>,
    /// The span of the current attempt.
    span: Span,
    /// Start time of the next attempt.
    resume_at: Option<Instant>,
    /// Errors of the candidates that failed.
    failures: Vec<ModelError>,
    /// Whether the caller has received a part of the answer.
    has_emitted: bool,
    /// Error of the attempt, handled after the pending events are emitted.
    attempt_error: Option<ModelError>,
    /// Error that ends the call, returned after the pending events are emitted.
    final_error: Option<ModelError>,
    /// Whether the answer is complete or the call has failed.
    done: bool,
}

/// The current candidate of a call and its attempts.
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
        (options, current_model): (CallOptions, Arc<Mutex<Option<ModelId>>>),
    ) -> Self {
        Self {
            inner,
            candidates,
            wants_stream: request.stream,
            request,
            options,
            current_model,
            candidate: None,
            attempt: None,
            span: Span::none(),
            pending: VecDeque::new(),
            resume_at: None,
            failures: Vec::new(),
            has_emitted: false,
            attempt_error: None,
            final_error: None,
            done: false,
        }
    }

    /// Returns the next event. An error is the last item.
    pub(crate) async fn next_event(&mut self) -> Option<Result<ModelEvent, ModelError>> {
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

    /// Returns whether the caller has received the complete answer, so that it cannot fail any more.
    fn is_delivered(&self) -> bool {
        self.done && self.pending.is_empty()
    }

    /// Returns the next event. Starts attempts, retries and fallbacks as needed, but does not handle cancellation.
    async fn drive_to_next_event(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                match event {
                    ModelEvent::Restart => self.has_emitted = false,
                    ModelEvent::Retry(_) => {}
                    _ => self.has_emitted = true,
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
                Ok(ReadStatus::More) => {}
                Ok(ReadStatus::Done) => self.done = true,
                // Emit earlier events first. Otherwise, whether the call may be retried would depend on how the
                // network splits the data.
                Err(error) => self.attempt_error = Some(error),
            }
        }
    }

    /// Starts the next candidate if necessary and reads from its attempt, within the deadline of the candidate.
    async fn advance_candidate(&mut self) -> Result<ReadStatus, ModelError> {
        if let Some(until) = self.resume_at {
            tokio::time::sleep_until(until).await;
            self.resume_at = None;
        }
        if self.candidate.is_none() {
            self.start_candidate().await?;
        }
        let deadline = self
            .candidate
            .as_ref()
            .and_then(|candidate| candidate.deadline);
        let Some(deadline) = deadline else {
            return self.poll_attempt().await;
        };
        tokio::time::timeout_at(deadline, self.poll_attempt())
            .await
            .unwrap_or_else(|_| {
                let seconds = self.options.timeout.unwrap_or_default().as_secs_f64();
                let message =
                    format!("the call took longer than {seconds} s; increase `model_timeout_seconds` if the model needs longer");
                Err(ModelError::new(
                    ModelErrorKind::Timeout,
                    RecoveryAction::NextModel,
                    message,
                ))
            })
    }

    /// Reads from the current attempt, or sends the request of a new attempt.
    async fn poll_attempt(&mut self) -> Result<ReadStatus, ModelError> {
        if let Some(attempt) = &mut self.attempt {
            let reading = attempt.read_events(&mut self.pending);
            return reading.instrument(self.span.clone()).await;
        }
        let Some(candidate) = &mut self.candidate else {
            return Ok(ReadStatus::Done);
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
        Ok(ReadStatus::More)
    }

    /// Looks up the endpoint of the next candidate and makes it the current one.
    async fn start_candidate(&mut self) -> Result<(), ModelError> {
        let no_candidate_error = || {
            Err(ModelError::new(
                ModelErrorKind::Setup,
                RecoveryAction::GiveUp,
                "no model to call: the list of candidates is empty; set `model`",
            ))
        };
        let endpoint = self
            .candidates
            .next_endpoint()
            .await
            .unwrap_or_else(no_candidate_error)?;
        endpoint.id.model().clone_into(&mut self.request.model);
        *self
            .current_model
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(endpoint.id.clone());
        let deadline = self.options.timeout.map(|timeout| Instant::now() + timeout);
        self.candidate = Some(CandidateState {
            endpoint,
            attempts: 0,
            has_renewed: false,
            deadline,
        });
        Ok(())
    }

    /// Handles an error of an attempt: prepares a retry or the next candidate, or returns the error that ends the call.
    async fn handle_attempt_error(&mut self, error: ModelError) -> Result<(), ModelError> {
        self.attempt = None;
        let error = self.annotated_error(error);
        if self.has_emitted && !self.options.restartable {
            return Err(error);
        }
        if std::mem::take(&mut self.has_emitted) {
            self.pending.push_back(ModelEvent::Restart);
        }
        if error.action == RecoveryAction::Reauthenticate && self.renew_credentials().await {
            return Ok(());
        }
        if let Some((attempt, delay)) = self.next_retry(&error) {
            tracing::warn!(delay_ms = delay.as_millis(), %error, "model.retry");
            self.resume_at = Some(Instant::now() + delay);
            let error = Box::new(error);
            self.pending.push_back(ModelEvent::Retry(Retry {
                attempt,
                delay,
                error,
            }));
            return Ok(());
        }
        let error = self.with_attempt_count(error);
        self.candidate = None;
        if error.action == RecoveryAction::ShrinkContext {
            // Report this error first, because the caller can act on it.
            self.failures.insert(0, error);
            return Err(self.combined_error());
        }
        if !self.candidates.has_more() {
            self.failures.push(error);
            return Err(self.combined_error());
        }
        tracing::warn!(%error, "model.fallback");
        let notice = Retry {
            attempt: 1,
            delay: Duration::ZERO,
            error: Box::new(error.clone()),
        };
        self.pending.push_back(ModelEvent::Retry(notice));
        self.failures.push(error);
        Ok(())
    }

    /// Adds to a temporary error the number of attempts, if there were several, and when to try again.
    fn with_attempt_count(&self, mut error: ModelError) -> ModelError {
        let attempts = self
            .candidate
            .as_ref()
            .map_or(0, |candidate| candidate.attempts);
        if error.action != RecoveryAction::Retry {
            return error;
        }
        if attempts > 1 {
            error.message = format!("{}; failed after {attempts} attempts", error.message);
        }
        let delay = error.retry_after.filter(|delay| !delay.is_zero());
        // Errors of the other kinds name a setting to check.
        let is_remote = matches!(
            error.kind,
            ModelErrorKind::Provider | ModelErrorKind::Truncated | ModelErrorKind::Empty
        );
        if let Some(delay) = delay {
            let seconds = delay.as_secs_f64().ceil();
            error.message = format!("{}; try again in {seconds} s", error.message);
        } else if is_remote {
            error.message.push_str("; try again later");
        }
        error
    }

    /// Returns the number and the delay of the next attempt with the current candidate. Returns `None` if the candidate is
    /// not retried.
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

    /// Replaces the rejected credentials of the current candidate, at most once per candidate. Returns whether they were
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
        // secret, so its values are redacted in this error only.
        let header_redactor = Redactor::new();
        for (_, value) in &candidate.endpoint.headers {
            header_redactor.register(value);
            if let Some((_, token)) = value.expose().split_once(' ') {
                header_redactor.register(&token.into());
            }
        }
        with_model_name(error.redacted(&header_redactor), &candidate.endpoint.id)
    }

    /// Returns the error that ends the call: the first error, with the errors of the other candidates.
    fn combined_error(&mut self) -> ModelError {
        let mut failures = std::mem::take(&mut self.failures).into_iter();
        let Some(mut first) = failures.next() else {
            return cancelled_error();
        };
        first.others.extend(failures);
        first
    }
}
