//! One turn of a lane.

use std::{panic::AssertUnwindSafe, sync::Arc};

use bub_kernel::{
    CancellationToken, Error, ErrorKind, Inbound, MessageId, Result, SessionId, TurnReport,
};
use futures_util::FutureExt as _;
use serde_json::Value;

use super::{LaneQueue, QueuedMessage, TurnPermit};
use crate::{gateway::GatewayInner, journal::JournalRecord, reply_scope::ReplyScope, router};

/// So many beginnings of a turn the end of the process may follow; the agent gives up earlier, and says so.
const MAX_CRASH_ATTEMPTS: u32 = 5;

/// What is said when a turn failed and nobody else could say so.
pub(crate) const TURN_FAILED_TEXT: &str =
    "Something went wrong on my side, and this message is not answered. The log has the details.";

/// How a turn ended.
#[derive(Default)]
pub(super) struct LaneTurnOutcome {
    pub(super) replies: u32,
    /// What the turn came to; `None` if it did not run.
    pub(super) report: Option<TurnReport>,
    /// It was stopped before its end.
    pub(super) is_cancelled: bool,
    /// It failed and its sender could not be told: the message stays in the journal.
    pub(super) unreported: Option<Error>,
}

/// A turn that is to be run.
pub(super) struct LaneTurn {
    pub(super) inner: Arc<GatewayInner>,
    pub(super) session_id: SessionId,
    pub(super) id: MessageId,
    pub(super) inbound: Inbound,
    pub(super) attempt: u32,
    pub(super) with: Vec<MessageId>,
    pub(super) cancel: CancellationToken,
    pub(super) queue: Arc<LaneQueue>,
}

impl LaneTurn {
    /// Runs the turn. It is cancelled when the gateway stops.
    pub(super) async fn run(self) -> LaneTurnOutcome {
        let (halt, cancel) = (self.inner.halt.clone(), self.cancel.clone());
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
        if self.attempt > MAX_CRASH_ATTEMPTS {
            return Box::pin(self.give_up(&scope)).await;
        }
        let Some(_permit) = self.begin().await else {
            // The journal keeps a message for the next start only if the gateway stops.
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
        // A message may ask for what the setting does not give to all.
        let asks_for_stream = inbound.message.field("stream_output");
        inbound.stream_output |= inner.options.stream_output
            || asks_for_stream.and_then(Value::as_bool).unwrap_or(false);
        inbound.reply_target = Some(Arc::clone(&scope) as _);
        // In a box of its own: very many turns may wait for room.
        let turn = Box::pin(inner.framework.process_turn(inbound));
        let (report, failure) = match AssertUnwindSafe(turn).catch_unwind().await {
            Ok((turn, outcome)) => (Some(turn.report()), outcome.err()),
            Err(_) => (None, Some(Error::unknown("the turn panicked"))),
        };
        let is_cancelled = |error: &Error| error.kind() == ErrorKind::Cancelled;
        let was_cancelled =
            failure.as_ref().is_some_and(is_cancelled) && self.cancel.is_cancelled();
        let unreported = match failure.filter(|error| !is_cancelled(error)) {
            Some(error) => {
                let reporting =
                    router::report_failure(&inner, &self.session_id, &scope, TURN_FAILED_TEXT);
                (!Box::pin(reporting).await).then_some(error)
            }
            None => None,
        };
        LaneTurnOutcome {
            replies: scope.replies(),
            report,
            is_cancelled: was_cancelled,
            unreported,
        }
    }

    /// The target of its replies, which knows those of earlier attempts.
    fn reply_scope(&self) -> ReplyScope {
        let scope = ReplyScope::new(&self.inner, self.id.clone(), &self.inbound.message);
        match self.inner.journal.live().inbound(&self.id) {
            Some(earlier) => scope.resuming(earlier),
            None => scope,
        }
    }

    /// Gives the message up, and tells its sender, unless there was a reply already.
    async fn give_up(self, scope: &Arc<ReplyScope>) -> LaneTurnOutcome {
        let (session_id, inbound_id) = (&self.session_id, &self.id);
        tracing::error!(%session_id, %inbound_id, "lane.attempts_exhausted");
        let text = format!(
            "This message was begun {MAX_CRASH_ATTEMPTS} times, and each time bub was ended. It will not be tried again."
        );
        if scope.replies() > 0 {
            // It was answered. Only the end of its turn is not journaled.
            return LaneTurnOutcome {
                replies: scope.replies(),
                ..LaneTurnOutcome::default()
            };
        }
        let error = Error::unknown(text);
        let mut inbound = self.inbound;
        inbound.reply_target = Some(Arc::clone(scope) as _);
        let turn = self.inner.framework.fail_inbound(inbound, &error).await;
        let reporting =
            router::report_failure(&self.inner, &self.session_id, scope, error.message());
        let is_told = reporting.await;
        // When the gateway stops, the next one says it. Nobody is there to be told when its channel is gone.
        let is_left = !is_told && self.inner.halt.is_cancelled();
        LaneTurnOutcome {
            replies: scope.replies(),
            report: Some(turn.report()),
            unreported: is_left.then_some(error),
            ..LaneTurnOutcome::default()
        }
    }

    /// Waits for its session and for room, and journals that it begins; `None` if it must not begin any more.
    async fn begin(&mut self) -> Option<TurnPermit> {
        let started = started(
            &self.inner,
            &self.id,
            &self.session_id,
            (self.attempt, std::mem::take(&mut self.with)),
        );
        let (inner, session_id) = (&self.inner, &self.session_id);
        // The turn itself reports what is wrong.
        let goes_on = |outcome: Result<()>| match outcome {
            Err(error) if error.kind() == ErrorKind::Cancelled => false,
            Err(error) => {
                tracing::warn!(%session_id, %error, "lane.wait_failed");
                true
            }
            Ok(()) => true,
        };
        let waiting = async {
            let waited = inner.framework.wait_for_session(session_id).await;
            let room = if self.inbound.is_quit() {
                None
            } else {
                Some(Arc::clone(&inner.turns).acquire_owned().await.ok()?)
            };
            let noted = inner.journal.commit(started).await;
            (goes_on(waited) && goes_on(noted)).then(|| TurnPermit::new(&self.queue, room))
        };
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => None,
            permit = waiting => permit,
        }
    }
}

/// The record that a turn for a message begins. It names the session only if that has changed.
fn started(
    inner: &GatewayInner,
    id: &MessageId,
    session_id: &SessionId,
    (attempt, with): (u32, Vec<MessageId>),
) -> JournalRecord {
    let live = inner.journal.live();
    let accepted = live.inbound(id).map(|message| &message.accepted.session);
    JournalRecord::Started {
        id: id.clone(),
        attempt,
        with,
        session: (accepted != Some(session_id)).then(|| session_id.clone()),
    }
}

/// A turn that the end of the gateway cut off is no crash: it does not count as another attempt.
pub(super) fn interrupted(inner: &GatewayInner, item: &QueuedMessage, session_id: &SessionId) {
    let attempt = item.attempt.saturating_sub(1).max(1);
    let record = started(inner, &item.id, session_id, (attempt, item.merged_ids()));
    inner.journal.post(record);
}
