//! Runs one turn of a lane.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::Ordering},
};

use bub_kernel::{
    Error, ErrorKind, Inbound, InboundAttempt, MessageId, Result, SessionId, TurnReport,
};
use futures_util::FutureExt as _;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::LaneQueue;
use crate::{gateway::GatewayInner, journal::JournalRecord, reply_scope::ReplyScope, router};

/// Number of attempts after which a message that crashes the process is abandoned. If the agent can run, it abandons
/// and reports the message after fewer attempts.
const MAX_CRASH_ATTEMPTS: u32 = 5;

/// Notice to the sender if a turn failed and no plugin reported the failure.
pub(crate) const TURN_FAILED_TEXT: &str =
    "An internal error occurred and your message was not answered. See the log for details.";

/// Counts a started turn and holds its permit. A `,quit` needs no permit.
struct TurnPermit {
    queue: Arc<LaneQueue>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl TurnPermit {
    fn new(queue: &Arc<LaneQueue>, permit: Option<OwnedSemaphorePermit>) -> Self {
        queue.running.fetch_add(1, Ordering::Relaxed);
        Self {
            queue: Arc::clone(queue),
            _permit: permit,
        }
    }
}

impl Drop for TurnPermit {
    fn drop(&mut self) {
        self.queue.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Outcome of a turn.
#[derive(Default)]
pub(super) struct LaneTurnOutcome {
    pub(super) replies: u32,
    /// Result of the turn; `None` if it did not run.
    pub(super) report: Option<TurnReport>,
    /// Whether the turn was cancelled before its end.
    pub(super) is_cancelled: bool,
    /// The failure that could not be reported to the sender. The message stays in the journal.
    pub(super) unreported: Option<Error>,
}

/// A turn that is ready to run.
pub(super) struct LaneTurn {
    pub(super) inner: Arc<GatewayInner>,
    pub(super) session_id: SessionId,
    pub(super) inbound: Inbound,
    pub(super) attempt: InboundAttempt,
    /// Ids of the messages that are merged with the message.
    pub(super) with: Vec<MessageId>,
    pub(super) queue: Arc<LaneQueue>,
}

impl LaneTurn {
    /// Runs the turn. The turn is cancelled when the gateway stops.
    pub(super) async fn run(self) -> LaneTurnOutcome {
        let (halt, cancel) = (self.inner.halt.clone(), self.inbound.cancel.clone());
        let halted = async move {
            halt.cancelled().await;
            cancel.cancel();
            std::future::pending().await
        };
        tokio::select! {
            biased;
            outcome = self.run_unless_cancelled() => outcome,
            never = halted => never,
        }
    }

    async fn run_unless_cancelled(mut self) -> LaneTurnOutcome {
        let inner = Arc::clone(&self.inner);
        let scope = Arc::new(self.reply_scope());
        if self.attempt.number > MAX_CRASH_ATTEMPTS {
            return Box::pin(self.abandon(&scope)).await;
        }
        let Some(_permit) = self.wait_and_begin().await else {
            // If the gateway stops, a durable journal keeps the message for the next start. Otherwise reject the
            // message.
            if !inner.journal.is_durable() || !inner.halt.is_cancelled() {
                let error = Error::new(ErrorKind::Cancelled, "the turn was cancelled");
                inner.framework.reject_inbound(self.inbound, &error).await;
            }
            return LaneTurnOutcome {
                is_cancelled: true,
                ..LaneTurnOutcome::default()
            };
        };
        let mut inbound = self.inbound;
        let cancel = inbound.cancel.clone();
        // A message can request a stream even if the setting is off.
        let asks_for_stream = inbound.message.field("stream_output");
        inbound.stream_output |= inner.options.stream_output
            || asks_for_stream.and_then(Value::as_bool).unwrap_or(false);
        // An answer that an earlier attempt sent is not shown again while the resumed turn repeats it.
        inbound.stream_output &= !scope.has_earlier_replies;
        inbound.reply_target = Some(Arc::clone(&scope) as _);
        // Boxed separately to keep this future small: many turns may wait for a permit.
        let turn = Box::pin(inner.framework.process_turn(inbound));
        let (report, failure) = match AssertUnwindSafe(turn).catch_unwind().await {
            Ok((turn, outcome)) => (Some(turn.report()), outcome.err()),
            Err(_) => (
                None,
                Some(Error::unknown("turn panicked; see the log for the panic")),
            ),
        };
        let is_cancelled = |error: &Error| error.kind() == ErrorKind::Cancelled;
        let was_cancelled = failure.as_ref().is_some_and(is_cancelled) && cancel.is_cancelled();
        let unreported = match failure.filter(|error| !is_cancelled(error)) {
            Some(error) => {
                let reporting =
                    router::report_failure(&inner, &self.session_id, &scope, TURN_FAILED_TEXT);
                (!Box::pin(reporting).await).then_some(error)
            }
            None => None,
        };
        LaneTurnOutcome {
            replies: scope.reply_count(),
            report,
            is_cancelled: was_cancelled,
            unreported,
        }
    }

    /// Returns the target for replies, with the replies of earlier attempts.
    fn reply_scope(&self) -> ReplyScope {
        let id = &self.attempt.message_id;
        let scope = ReplyScope::new(&self.inner, id.clone(), &self.inbound.message);
        match self.inner.journal.lock_state().unfinished_message(id) {
            Some(earlier) => scope.with_earlier_replies(earlier),
            None => scope,
        }
    }

    /// Abandons the message. If an earlier attempt sent a reply, does nothing else. If the tape has an answer from an
    /// earlier attempt, sends this answer without rendering it. Otherwise sends a failure notice.
    async fn abandon(self, scope: &Arc<ReplyScope>) -> LaneTurnOutcome {
        let (session_id, inbound_id) = (&self.session_id, &self.attempt.message_id);
        tracing::error!(%session_id, %inbound_id, "lane.attempts_exhausted");
        let text = format!(
            "bub stopped unexpectedly {MAX_CRASH_ATTEMPTS} times while it processed this message. The message will not be retried."
        );
        if scope.has_earlier_replies {
            // The message was answered; only the end of its turn is not journaled.
            return LaneTurnOutcome::default();
        }
        let error = Error::unknown(text);
        let mut inbound = self.inbound;
        inbound.reply_target = Some(Arc::clone(scope) as _);
        let turn = self.inner.framework.fail_inbound(inbound, &error).await;
        let (inner, session_id) = (&self.inner, &self.session_id);
        let answer = turn.report().output;
        let is_reported = if answer.trim().is_empty() {
            router::report_failure(inner, session_id, scope, error.message()).await
        } else {
            let reply = scope.plain_reply(session_id, &inner.redact(&answer));
            router::send_final_reply(inner, scope, reply).await
        };
        // If the gateway is stopping, the next start reports the failure. If the channel does not exist, no one can be
        // notified.
        let is_unreported = !is_reported && inner.halt.is_cancelled();
        LaneTurnOutcome {
            replies: scope.reply_count(),
            report: Some(turn.report()),
            unreported: is_unreported.then_some(error),
            ..LaneTurnOutcome::default()
        }
    }

    /// Waits for the session and a permit, and journals the start of the turn. Returns `None` if the turn was
    /// cancelled.
    async fn wait_and_begin(&mut self) -> Option<TurnPermit> {
        let (inner, session_id) = (&self.inner, &self.session_id);
        let with = std::mem::take(&mut self.with);
        let record = started_record(inner, session_id, &self.attempt, with);
        // The turn continues after an error and reports it.
        let should_continue = |outcome: Result<()>| match outcome {
            Err(error) if error.kind() == ErrorKind::Cancelled => false,
            Err(error) => {
                tracing::warn!(%session_id, %error, "lane.wait_failed");
                true
            }
            Ok(()) => true,
        };
        let waiting = async {
            let waited = inner.framework.wait_for_session(session_id).await;
            let permit = if self.inbound.is_quit() {
                None
            } else {
                Some(Arc::clone(&inner.turns).acquire_owned().await.ok()?)
            };
            let journaled = inner.journal.append_with_retries(record).await;
            (should_continue(waited) && should_continue(journaled))
                .then(|| TurnPermit::new(&self.queue, permit))
        };
        tokio::select! {
            biased;
            () = self.inbound.cancel.cancelled() => None,
            permit = waiting => permit,
        }
    }
}

/// Returns the journal record for the start of a turn. It contains the session of the turn only if it differs from the
/// session that the message was accepted for.
pub(super) fn started_record(
    inner: &GatewayInner,
    session_id: &SessionId,
    attempt: &InboundAttempt,
    with: Vec<MessageId>,
) -> JournalRecord {
    let state = inner.journal.lock_state();
    let message = state.unfinished_message(&attempt.message_id);
    let accepted = message.map(|message| &message.accepted.session);
    JournalRecord::Started {
        id: attempt.message_id.clone(),
        attempt: attempt.number,
        with,
        session: (accepted != Some(session_id)).then(|| session_id.clone()),
    }
}
