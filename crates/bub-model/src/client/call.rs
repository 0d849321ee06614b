//! A model call with all its attempts.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bub_settings::Redactor;
use tokio::time::Instant;
use tracing::{Instrument as _, Span, error_span};

use super::attempt::{Attempt, ReadStatus};
use super::hints::add_hints;
use super::transport::cancelled;
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
    /// Whether the caller requests a stream. Some servers do not support streaming.
    streams: bool,
    options: CallOptions,
    answering: Arc<Mutex<Option<ModelId>>>,
    /// The current candidate.
    turn: Option<CandidateState>,
    /// The current attempt, after its response has started.
    attempt: Option<Attempt>,
    pending: VecDeque<ModelEvent>,
    /// The span of the current attempt.
    span: Span,
    /// Start time of the next attempt.
    resume: Option<Instant>,
    /// Errors of the candidates that failed.
    failures: Vec<ModelError>,
    /// Whether the caller has received a part of the answer.
    emitted: bool,
    /// Error of the attempt, handled after the pending events are emitted.
    failed: Option<ModelError>,
    /// Error that ends the call, returned after the pending events are emitted.
    last: Option<ModelError>,
    /// Whether the answer is complete or the call has failed.
    done: bool,
}

struct CandidateState {
    endpoint: Endpoint,
    tries: u32,
    renewed: bool,
    deadline: Option<Instant>,
}

impl ModelCall {
    pub(crate) fn new(
        inner: Arc<Inner>,
        candidates: Candidates,
        request: ChatRequest,
        (options, answering): (CallOptions, Arc<Mutex<Option<ModelId>>>),
    ) -> Self {
        Self {
            inner,
            candidates,
            streams: request.stream,
            request,
            options,
            answering,
            turn: None,
            attempt: None,
            span: Span::none(),
            pending: VecDeque::new(),
            resume: None,
            failures: Vec::new(),
            emitted: false,
            failed: None,
            last: None,
            done: false,
        }
    }

    /// Returns the next event. An error is the last item.
    pub(crate) async fn next(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        let cancel = self.options.cancel.clone();
        let item = tokio::select! {
            biased;
            () = cancel.cancelled(), if !self.delivered() => Some(Err(cancelled())),
            item = self.advance() => item,
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
    fn delivered(&self) -> bool {
        self.done && self.pending.is_empty()
    }

    async fn advance(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                match event {
                    ModelEvent::Restart => self.emitted = false,
                    ModelEvent::Retry(_) => {}
                    _ => self.emitted = true,
                }
                return Some(Ok(event));
            }
            if let Some(error) = self.last.take() {
                return Some(Err(error));
            }
            if let Some(error) = self.failed.take() {
                let span = self.span.clone();
                self.last = self.recover(error).instrument(span).await.err();
                continue;
            }
            if self.done {
                if let Some(attempt) = self.attempt.take() {
                    attempt.close().await;
                }
                return None;
            }
            match self.step().await {
                Ok(ReadStatus::More) => {}
                Ok(ReadStatus::Done) => self.done = true,
                // Emit earlier events first. Otherwise, whether the call may be retried would depend on how the
                // network splits the data.
                Err(error) => self.failed = Some(error),
            }
        }
    }

    /// Advances the call by one step, within the deadline of the candidate.
    async fn step(&mut self) -> Result<ReadStatus, ModelError> {
        if let Some(until) = self.resume {
            tokio::time::sleep_until(until).await;
            self.resume = None;
        }
        if self.turn.is_none() {
            self.start_candidate().await?;
        }
        let deadline = self.turn.as_ref().and_then(|turn| turn.deadline);
        let Some(deadline) = deadline else {
            return self.poll_attempt().await;
        };
        tokio::time::timeout_at(deadline, self.poll_attempt())
            .await
            .unwrap_or_else(|_| {
                let seconds = self.options.timeout.unwrap_or_default().as_secs_f64();
                let message =
                    format!("the call took longer than {seconds} s (`model_timeout_seconds`)");
                Err(ModelError::new(
                    ModelErrorKind::Timeout,
                    RecoveryAction::NextModel,
                    message,
                ))
            })
    }

    async fn poll_attempt(&mut self) -> Result<ReadStatus, ModelError> {
        if let Some(attempt) = &mut self.attempt {
            let reading = attempt.read(&mut self.pending);
            return reading.instrument(self.span.clone()).await;
        }
        let Some(turn) = &mut self.turn else {
            return Ok(ReadStatus::Done);
        };
        turn.tries += 1;
        self.span = error_span!("model_call", model = %turn.endpoint.id, attempt = turn.tries);
        self.request.stream = self.streams && turn.endpoint.quirks.streaming;
        let opening = async {
            tracing::debug!("model.call");
            Attempt::open(&self.inner, &turn.endpoint, &self.request, &self.options).await
        };
        let attempt = opening.instrument(self.span.clone()).await?;
        self.attempt = Some(attempt);
        Ok(ReadStatus::More)
    }

    async fn start_candidate(&mut self) -> Result<(), ModelError> {
        let none = || {
            Err(ModelError::new(
                ModelErrorKind::Setup,
                RecoveryAction::GiveUp,
                "there is no model to call",
            ))
        };
        let endpoint = self.candidates.next().await.unwrap_or_else(none)?;
        endpoint.id.model().clone_into(&mut self.request.model);
        *self
            .answering
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(endpoint.id.clone());
        let deadline = self.options.timeout.map(|timeout| Instant::now() + timeout);
        self.turn = Some(CandidateState {
            endpoint,
            tries: 0,
            renewed: false,
            deadline,
        });
        Ok(())
    }

    /// Handles an error of an attempt: prepares a retry or the next candidate, or returns the error that ends the call.
    async fn recover(&mut self, error: ModelError) -> Result<(), ModelError> {
        self.attempt = None;
        let error = self.redacted_error(error);
        if self.emitted && !self.options.restartable {
            return Err(error);
        }
        if std::mem::take(&mut self.emitted) {
            self.pending.push_back(ModelEvent::Restart);
        }
        if error.action == RecoveryAction::Reauthenticate && self.renew().await {
            return Ok(());
        }
        if let Some((attempt, wait)) = self.next_retry(&error) {
            tracing::warn!(delay_ms = wait.as_millis(), %error, "model.retry");
            self.resume = Some(Instant::now() + wait);
            let error = Box::new(error);
            self.pending.push_back(ModelEvent::Retry(Retry {
                attempt,
                wait,
                error,
            }));
            return Ok(());
        }
        let error = self.with_attempt_count(error);
        self.turn = None;
        if error.action == RecoveryAction::ShrinkContext {
            // Report this error first, because the caller can act on it.
            self.failures.insert(0, error);
            return Err(self.first_failure());
        }
        if !self.candidates.more() {
            self.failures.push(error);
            return Err(self.first_failure());
        }
        tracing::warn!(%error, "model.fallback");
        let notice = Retry {
            attempt: 1,
            wait: Duration::ZERO,
            error: Box::new(error.clone()),
        };
        self.pending.push_back(ModelEvent::Retry(notice));
        self.failures.push(error);
        Ok(())
    }

    /// Adds to a temporary error the number of attempts, if there were several, and the delay that the server requests.
    fn with_attempt_count(&self, mut error: ModelError) -> ModelError {
        let tries = self.turn.as_ref().map_or(0, |turn| turn.tries);
        if error.action != RecoveryAction::Retry {
            return error;
        }
        if tries > 1 {
            error.message = format!("{}; tried {tries} times", error.message);
        }
        if let Some(wait) = error.retry_after.filter(|wait| !wait.is_zero()) {
            error.message = format!(
                "{}; it asks to wait {} s",
                error.message,
                wait.as_secs_f64().ceil()
            );
        }
        error
    }

    /// Returns number and delay of the next attempt with the current candidate, or `None` if it is not retried.
    fn next_retry(&self, error: &ModelError) -> Option<(u32, Duration)> {
        let turn = self.turn.as_ref()?;
        let most = match error.kind {
            ModelErrorKind::Timeout | ModelErrorKind::Empty => {
                self.options.attempts.min(MAX_SILENT_ATTEMPTS)
            }
            _ => self.options.attempts,
        };
        if error.action != RecoveryAction::Retry || turn.tries >= most {
            return None;
        }
        let mut backoff = self.options.backoff;
        if self.candidates.more() {
            backoff.wait_timeout = backoff.wait_timeout.min(MAX_RETRY_WAIT_WITH_FALLBACK);
        }
        let wait = backoff.wait(turn.tries, error.retry_after)?;
        let in_time = turn
            .deadline
            .is_none_or(|deadline| Instant::now() + wait < deadline);
        in_time.then_some((turn.tries + 1, wait))
    }

    /// Replaces rejected credentials. Returns whether other credentials are available. Tries only once per candidate.
    async fn renew(&mut self) -> bool {
        let (Some(turn), Some(source)) = (&mut self.turn, &self.candidates.source) else {
            return false;
        };
        if std::mem::replace(&mut turn.renewed, true) {
            return false;
        }
        match source.renew(&turn.endpoint).await {
            Ok(Some(endpoint)) => {
                turn.endpoint = endpoint;
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

    /// Adds hints and the model's name to an error and redacts it.
    fn redacted_error(&self, error: ModelError) -> ModelError {
        let error = error.redacted(&self.inner.redactor);
        let Some(turn) = &self.turn else { return error };
        let error = add_hints(error, &turn.endpoint);
        // The redactor knows the keys of the settings, but the endpoint may come from elsewhere. Not every header is
        // secret, so its values are redacted in this error only.
        let own = Redactor::new();
        for (_, value) in &turn.endpoint.headers {
            own.register(value);
            if let Some((_, token)) = value.expose().split_once(' ') {
                own.register(&token.into());
            }
        }
        with_model_name(error.redacted(&own), &turn.endpoint.id)
    }

    /// Returns the first error, with the errors of the other candidates.
    fn first_failure(&mut self) -> ModelError {
        let mut failures = std::mem::take(&mut self.failures).into_iter();
        let Some(mut first) = failures.next() else {
            return cancelled();
        };
        first.others.extend(failures);
        first
    }
}
