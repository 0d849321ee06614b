//! One call in all its tries.

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

/// A server that asks for more time than this loses its turn, when another one is there to ask.
const MAX_RETRY_WAIT_WITH_FALLBACK: Duration = Duration::from_secs(10);

/// How often a model is asked that says nothing: each try takes the whole of the idle timeout, or ends the same way.
const MAX_SILENT_ATTEMPTS: u32 = 2;

/// A call: candidates, tries, and what was handed out.
pub(crate) struct ModelCall {
    inner: Arc<Inner>,
    candidates: Candidates,
    request: ChatRequest,
    /// Whether the caller wants a stream; not every server has one.
    streams: bool,
    options: CallOptions,
    answering: Arc<Mutex<Option<ModelId>>>,
    /// The candidate whose turn it is.
    turn: Option<CandidateState>,
    /// Its answer, once it has begun.
    attempt: Option<Attempt>,
    pending: VecDeque<ModelEvent>,
    /// The span of the current attempt.
    span: Span,
    /// When the next try may begin.
    resume: Option<Instant>,
    /// The errors of the candidates so far.
    failures: Vec<ModelError>,
    /// Whether the caller has got anything that counts.
    emitted: bool,
    /// What went wrong after the events that are still to be handed out.
    failed: Option<ModelError>,
    /// The error that ends the call, once what came before it is handed out.
    last: Option<ModelError>,
    /// The answer is read to its end, or the call has failed.
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

    /// The next event; after an error nothing follows.
    pub(crate) async fn next(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        let cancel = self.options.cancel.clone();
        let item = tokio::select! {
            biased;
            () = cancel.cancelled(), if !self.delivered() => Some(Err(cancelled())),
            item = self.advance() => item,
        };
        if let Some(Err(_)) = &item {
            // The connection is closed now, not when the caller gets round to dropping the stream.
            self.attempt = None;
            self.pending.clear();
            self.done = true;
        }
        item
    }

    /// Whether the caller has the whole answer: nothing can go wrong with it any more.
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
                // What came before it is handed out first: whether the call may be repeated does not depend on
                // how the network cut it.
                Err(error) => self.failed = Some(error),
            }
        }
    }

    /// Takes the call one step further, within the time of the candidate.
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

    /// Decides what follows an error: another try, another model, or the end.
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
            // The caller can do something about this one, so it comes before what happened to others.
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

    /// The error with how often it was tried, where that was more than once, and the wait that was asked for.
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

    /// The number of the try that the same model gets, and the wait before it.
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

    /// Whether there are other credentials after these were refused. They are asked for once.
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

    /// The error with the model's name and without anything secret.
    fn redacted_error(&self, error: ModelError) -> ModelError {
        let error = error.redacted(&self.inner.redactor);
        let Some(turn) = &self.turn else { return error };
        let error = add_hints(error, &turn.endpoint);
        // The settings have registered their keys, but an endpoint may come from elsewhere. Not every header is
        // a secret, so they are masked in this error only.
        let own = Redactor::new();
        for (_, value) in &turn.endpoint.headers {
            own.register(value);
            if let Some((_, token)) = value.expose().split_once(' ') {
                own.register(&token.into());
            }
        }
        with_model_name(error.redacted(&own), &turn.endpoint.id)
    }

    /// The first error, with what became of the other candidates.
    fn first_failure(&mut self) -> ModelError {
        let mut failures = std::mem::take(&mut self.failures).into_iter();
        let Some(mut first) = failures.next() else {
            return cancelled();
        };
        first.others.extend(failures);
        first
    }
}
