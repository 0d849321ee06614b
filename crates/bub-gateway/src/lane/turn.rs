//! One turn of a lane.

use std::{panic::AssertUnwindSafe, sync::Arc};

use bub_kernel::{CancellationToken, Delivery, Envelope, ErrorKind, Result, TurnOptions};
use futures_util::FutureExt as _;
use serde_json::Value;

use super::{Begun, Item, Load};
use crate::{current::Current, gateway::Core, journal::Record, router};

/// So many beginnings of a turn the end of the process may follow; the agent gives up earlier, and says so.
const MOST_ATTEMPTS: u32 = 5;

/// What is said when a turn failed and nobody else could say so.
pub(crate) const FAILED: &str =
    "Something went wrong on my side, and this message is not answered. The log has the details.";

/// How a turn ended.
#[derive(Default)]
pub(super) struct Ended {
    pub(super) replies: u32,
    /// It was stopped before its end.
    pub(super) is_cancelled: bool,
    /// It failed, and nobody could be told: the message stays in the journal.
    pub(super) is_left: bool,
}

/// A turn that is to be run.
pub(super) struct Turn {
    pub(super) core: Arc<Core>,
    pub(super) session: String,
    pub(super) id: String,
    pub(super) message: Envelope,
    pub(super) attempt: u32,
    pub(super) with: Vec<String>,
    pub(super) cancel: CancellationToken,
    pub(super) load: Arc<Load>,
}

impl Turn {
    pub(super) async fn run(mut self) -> Ended {
        let (core, id) = (Arc::clone(&self.core), self.id.clone());
        let (said, has_spoken) = {
            let live = core.journal.live();
            let before = live
                .inbound(&id)
                .map(|inbound| (inbound.prints.clone(), inbound.has_spoken));
            before.unwrap_or_default()
        };
        if self.attempt > MOST_ATTEMPTS {
            return Box::pin(self.give_up(said)).await;
        }
        let Some(_begun) = self.begin().await else {
            return Ended {
                is_cancelled: true,
                ..Ended::default()
            };
        };
        self.message.put_slot(Arc::new(Delivery {
            inbound_id: id.clone(),
            attempt: self.attempt,
        }));
        // A message may ask for what the setting does not give to all.
        let is_streamed = self
            .message
            .field("stream_output")
            .and_then(Value::as_bool)
            .unwrap_or(false);
        let stream_output = core.options.stream_output || is_streamed;
        let options = TurnOptions {
            stream_output,
            cancel: Some(self.cancel.clone()),
        };
        let current = Arc::new(Current::new(id, &self.message, said).spoken(has_spoken));
        // In a box of its own: very many turns may wait for room.
        let turn = Box::pin(core.framework.process_inbound(self.message, options));
        let turn = AssertUnwindSafe(current.run(turn));
        let failure = match turn.catch_unwind().await {
            Ok(outcome) => outcome.err().map(|error| error.kind()),
            Err(_) => Some(ErrorKind::Unknown),
        };
        let is_cancelled = failure == Some(ErrorKind::Cancelled) && self.cancel.is_cancelled();
        let is_owed = failure.is_some_and(|kind| kind != ErrorKind::Cancelled);
        let is_left =
            is_owed && !Box::pin(router::excuse(&core, &self.session, &current, FAILED)).await;
        Ended {
            replies: current.replies(),
            is_cancelled,
            is_left,
        }
    }

    /// The message is not tried again, and its sender is told, unless there was a reply already.
    async fn give_up(self, said: Vec<u64>) -> Ended {
        tracing::error!("lane.given_up session={} id={}", self.session, self.id);
        let is_answered = !said.is_empty();
        let current = Arc::new(Current::new(self.id, &self.message, said));
        let text = format!(
            "This message was begun {MOST_ATTEMPTS} times, and each time bub was ended. It will not be tried again."
        );
        let is_told =
            is_answered || router::excuse(&self.core, &self.session, &current, &text).await;
        // When the gateway stops, the next one says it. Nobody is there to be told when its channel is gone.
        let is_left = !is_told && self.core.halt.is_cancelled();
        Ended {
            replies: current.replies(),
            is_left,
            ..Ended::default()
        }
    }

    /// Waits for its session and for room, and writes down that it begins; `None` when it is not to begin any more.
    async fn begin(&mut self) -> Option<Begun> {
        let (id, with) = (self.id.clone(), std::mem::take(&mut self.with));
        let (core, session) = (&self.core, &self.session);
        // The turn itself will say what is wrong, and to whom it matters.
        let goes_on = |outcome: Result<()>| match outcome {
            Err(error) if error.kind() == ErrorKind::Cancelled => false,
            Err(error) => {
                tracing::warn!("lane.wait_failed session={session} error={error}");
                true
            }
            Ok(()) => true,
        };
        let waiting = async {
            let waited = core
                .options
                .house
                .wait_for_session(&core.framework, session)
                .await;
            let needs_room = !super::is_quit(&self.message);
            let room = if needs_room {
                Some(Arc::clone(&core.turns).acquire_owned().await.ok()?)
            } else {
                None
            };
            let noted = core
                .journal
                .commit(Record::Started {
                    id,
                    attempt: self.attempt,
                    with,
                })
                .await;
            (goes_on(waited) && goes_on(noted)).then(|| Begun::new(&self.load, room))
        };
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => None,
            begun = waiting => begun,
        }
    }
}

/// A turn that the end of the gateway cut off is no crash: it does not count as another attempt.
pub(super) fn interrupted(core: &Core, item: &Item) {
    let with = item.merged.iter().map(|item| item.id.clone()).collect();
    let attempt = item.attempt.saturating_sub(1).max(1);
    core.journal.post(Record::Started {
        id: item.id.clone(),
        attempt,
        with,
    });
}
