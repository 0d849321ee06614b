//! The lane of a session: a task that runs the session's messages in order.
//!
//! A lane exists only while its session has work. It collects messages that arrive close together (debounce) and
//! decides about each message (admission). It runs the turns and reports the outcome of each message exactly once.

mod debounce;
mod message;
mod queue;
mod steering;
pub(crate) mod turn;

use std::{
    collections::{HashMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use bub_kernel::{
    Admission, AdmissionDecision, CancellationToken, DropReason, Envelope, Error, Inbound,
    InboundAttempt, MessageId, MessageOutcome, Role, Sender, SessionId, TurnSnapshot, hooks::args,
};
use futures_util::{FutureExt as _, future::OptionFuture};
use serde_json::Value;
use tokio::{
    sync::oneshot,
    task::{Id, JoinError, JoinSet},
    time::{Instant, sleep_until, timeout},
};

use self::{
    debounce::Debouncer,
    queue::{LaneEvent, LaneQueue},
    turn::{LaneTurn, LaneTurnOutcome},
};
pub(crate) use self::{
    message::{QueuedMessage, chat_key},
    queue::{Arrival, ChatKey, Lanes, QueueSlot},
};
use crate::{gateway::GatewayInner, journal::JournalRecord};

/// Timeout for a channel's `admit_message`.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(30);
/// How long `,quit` waits for cancelled turns before it aborts them.
const QUIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the messages of one session.
struct Lane {
    inner: Arc<GatewayInner>,
    session_id: SessionId,
    queue: Arc<LaneQueue>,
    debounce: Debouncer,
    pending: VecDeque<QueuedMessage>,
    /// Messages in the steering inbox, and messages that the running turn took from it.
    steered: Vec<QueuedMessage>,
    turns: JoinSet<LaneTurnOutcome>,
    running: HashMap<Id, ActiveTurn>,
    quit: Option<QuitRequest>,
}

/// A running turn of a lane.
struct ActiveTurn {
    item: QueuedMessage,
    sender: Arc<Sender>,
    chat: ChatKey,
    cancel: CancellationToken,
    /// Why the lane cancelled the turn, if it did.
    end_reason: Option<DropReason>,
}

impl ActiveTurn {
    fn cancel_with_reason(&mut self, reason: DropReason) {
        self.end_reason.get_or_insert(reason);
        self.cancel.cancel();
    }

    fn is_ending(&self) -> bool {
        self.end_reason.is_some()
    }
}

struct QuitRequest {
    except: Option<MessageId>,
    deadline: Instant,
    waiting: Vec<oneshot::Sender<()>>,
}

impl Lane {
    fn new(inner: &Arc<GatewayInner>, session_id: &SessionId, queue: Arc<LaneQueue>) -> Self {
        Self {
            inner: Arc::clone(inner),
            session_id: session_id.clone(),
            queue,
            debounce: Debouncer::default(),
            pending: VecDeque::new(),
            steered: Vec::new(),
            turns: JoinSet::new(),
            running: HashMap::new(),
            quit: None,
        }
    }

    async fn run(mut self) {
        let (halt, drain) = (self.inner.halt.clone(), self.inner.drain.clone());
        loop {
            if self.running.is_empty()
                && let Some(item) = self.pending.pop_front()
            {
                Box::pin(self.start_turn(item)).await;
            }
            if self.remove_if_idle() {
                return;
            }
            let wake = self.wake_time(drain.is_cancelled());
            tokio::select! {
                biased;
                () = halt.cancelled() => return Box::pin(self.finish_on_stop()).await,
                Some(ended) = self.turns.join_next_with_id(), if !self.turns.is_empty() => Box::pin(self.finish_turn(ended)).await,
                event = self.queue.next_event() => if let Some(event) = event {
                    Box::pin(self.handle_event(event)).await;
                },
                Some(()) = OptionFuture::from(wake.map(sleep_until)) => Box::pin(self.handle_timer()).await,
                () = drain.cancelled(), if !drain.is_cancelled() => {}
            }
        }
    }

    /// Removes the lane from the map of lanes if it has no work and no active chat (see the module `debounce`). Returns
    /// whether it was removed.
    fn remove_if_idle(&mut self) -> bool {
        let is_busy =
            !self.running.is_empty() || self.quit.is_some() || self.debounce.has_work(&self.inner);
        let lanes = &self.inner.lanes;
        !is_busy && lanes.remove_if_idle(&self.inner, &self.session_id, &self.queue)
    }

    fn wake_time(&self, is_draining: bool) -> Option<Instant> {
        let debounce = if is_draining {
            self.debounce.is_holding().then(Instant::now)
        } else {
            self.debounce.wake_time(&self.inner)
        };
        let quit = self.quit.as_ref().map(|quit| quit.deadline);
        [debounce, quit].into_iter().flatten().min()
    }

    async fn handle_timer(&mut self) {
        let quit = self.quit.as_ref();
        if quit.is_some_and(|quit| quit.deadline <= Instant::now()) {
            tracing::error!(session_id = %self.session_id, "lane.quit_forced");
            self.turns.abort_all();
        }
        if (self.debounce.is_due() || self.inner.drain.is_cancelled())
            && let Some(item) = self.debounce.take_merged()
        {
            self.admit_message(item).await;
        }
    }

    async fn handle_event(&mut self, event: LaneEvent) {
        match event {
            LaneEvent::Message(item) => {
                let item = *item;
                if item.inbound.is_quit() {
                    self.quit_session(None).await;
                    // The `,quit` has its own turn, which also stops background shells.
                    self.pending.push_back(item);
                } else if let Some(item) = self.hold_if_debounced(item) {
                    self.admit_message(item).await;
                }
            }
            LaneEvent::Cancel => {
                for turn in self.running.values_mut() {
                    turn.cancel_with_reason(DropReason::Cancelled);
                }
            }
            LaneEvent::Withdraw => {
                if let Some(item) = self.pop_last_pending().await {
                    self.drop_message(item, DropReason::Withdrawn);
                }
            }
            LaneEvent::Quit { except, done } => {
                self.quit_session(except).await;
                if let Some(quit) = &mut self.quit {
                    quit.waiting.extend(done);
                }
            }
        }
    }

    /// Holds a message if its channel needs debouncing. Returns `None` if the message was held or dropped.
    fn hold_if_debounced(&mut self, item: QueuedMessage) -> Option<QueuedMessage> {
        let channel = item.inbound.message.channel();
        let channel = channel.and_then(|name| self.inner.channel(&name));
        let needs_debounce = channel.is_some_and(|channel| channel.needs_debounce());
        if !needs_debounce
            || item.was_queued
            || item.inbound.message.is_command()
            || item.attempt > 0
            || !item.merged.is_empty()
        {
            return Some(item);
        }
        if let Some(item) = self.debounce.hold(item, &self.inner) {
            self.drop_message(item, DropReason::NotAddressed);
        }
        None
    }

    async fn admit_message(&mut self, mut item: QueuedMessage) {
        if item.was_queued {
            return self.pending.push_back(item);
        }
        let snapshot = TurnSnapshot {
            session_id: self.session_id.clone(),
            is_running: !self.running.is_empty(),
            running_count: self.running.len(),
            pending_count: self.pending.len(),
            steering_count: self.steered.len(),
        };
        let admission = self.decide_admission(&item.inbound, &snapshot).await;
        let (decision, reason) = admission
            .map(|admission| (admission.decision, admission.reason))
            .unzip();
        let reason = reason.flatten();
        match decision {
            Some(AdmissionDecision::Drop) => {
                self.drop_message(item, DropReason::NotAdmitted(reason));
            }
            Some(AdmissionDecision::Process) => self.start_turn(item).await,
            Some(AdmissionDecision::Steer) if self.can_steer(&item) => {
                if let Some(reason) = reason {
                    set_steering_reason(&mut item.inbound.message, reason);
                }
                if let Some(refused) = self.steer_running_turn(item).await {
                    self.pending.push_back(refused);
                }
            }
            _ => self.pending.push_back(item),
        }
    }

    async fn decide_admission(
        &self,
        inbound: &Inbound,
        snapshot: &TurnSnapshot,
    ) -> Option<Admission> {
        let message = &inbound.message;
        let framework = &self.inner.framework;
        let decided = framework.admit_message(&self.session_id, inbound, snapshot);
        if let Some(decided) = decided.await {
            return Some(decided);
        }
        let name = message.channel()?;
        let channel = self.inner.channel(&name)?;
        let admission = AssertUnwindSafe(async { channel.admit_message(inbound, snapshot).await });
        let error = match timeout(ADMISSION_TIMEOUT, admission.catch_unwind()).await {
            Ok(Ok(Ok(decided))) => return decided,
            Ok(Ok(Err(error))) => error,
            Ok(Err(_)) => Error::unknown(format!(
                "`admit_message` of channel `{name}` panicked; see the log for the panic"
            )),
            Err(_) => Error::unknown(format!(
                "`admit_message` of channel `{name}` timed out after {} s",
                ADMISSION_TIMEOUT.as_secs()
            )),
        };
        // If admission fails, the message is processed in order.
        let args = args::OnError::new("admit_message", &error, Some(message), None);
        framework.hooks().notify_error(args).await;
        None
    }

    /// Returns whether a message can steer the running turns. The sender of the message must also be the sender of all
    /// these turns, with the same role. The message must not be a command, and no turn may have started for it before.
    fn can_steer(&self, item: &QueuedMessage) -> bool {
        let sender = item.inbound.sender();
        let is_same = |turn: &ActiveTurn| {
            (&sender.channel, &sender.id, sender.role)
                == (&turn.sender.channel, &turn.sender.id, turn.sender.role)
        };
        let is_known = !sender.id.is_empty() || sender.role == Role::Guest;
        let is_new = item.attempt == 0 && !item.inbound.message.is_command();
        is_known && is_new && !self.running.is_empty() && self.running.values().all(is_same)
    }

    /// Cancels the running turns, except the turn of the message `except`, and drops all queued messages.
    async fn quit_session(&mut self, except: Option<MessageId>) {
        let steered = std::mem::take(&mut self.steered);
        if !steered.is_empty() {
            let _ = self.inner.framework.take_steered(&self.session_id).await;
        }
        let pending = std::mem::take(&mut self.pending).into_iter();
        for item in pending.chain(self.debounce.take_merged()).chain(steered) {
            self.drop_message(item, DropReason::SessionQuit);
        }
        for turn in self.running.values_mut() {
            if Some(&turn.item.id) != except.as_ref() {
                turn.cancel_with_reason(DropReason::SessionQuit);
            }
        }
        if self.running.values().any(ActiveTurn::is_ending) {
            let deadline = Instant::now() + QUIT_TIMEOUT;
            self.quit.get_or_insert(QuitRequest {
                except,
                deadline,
                waiting: Vec::new(),
            });
        }
    }

    fn drop_message(&self, item: QueuedMessage, reason: DropReason) {
        let (session_id, inbound_id) = (&self.session_id, &item.id);
        tracing::info!(%session_id, %inbound_id, %reason, "lane.dropped");
        self.inner.journal.append_later(JournalRecord::Dropped {
            ids: item.all_ids(),
            reason: reason.to_string(),
            is_rejected: false,
        });
        item.settle(MessageOutcome::Dropped { reason });
    }

    async fn start_turn(&mut self, mut item: QueuedMessage) {
        item.attempt += 1;
        self.offer_earlier_steering(&mut item).await;
        // The channel that submitted the message can cancel its turn.
        let cancel = item.inbound.cancel.child_token();
        let (sender, chat) = (item.inbound.sender(), item.chat_key());
        let mut inbound = std::mem::take(&mut item.inbound);
        let attempt = self.inbound_attempt(&item);
        inbound.cancel = cancel.clone();
        inbound.attempt = Some(attempt.clone());
        let turn = LaneTurn {
            inner: Arc::clone(&self.inner),
            session_id: self.session_id.clone(),
            inbound,
            attempt,
            with: item.merged_ids(),
            queue: Arc::clone(&self.queue),
        };
        let task = self.turns.spawn(turn.run());
        self.running.insert(
            task.id(),
            ActiveTurn {
                item,
                sender,
                chat,
                cancel,
                end_reason: None,
            },
        );
    }

    fn inbound_attempt(&self, item: &QueuedMessage) -> InboundAttempt {
        InboundAttempt {
            message_id: item.id.clone(),
            number: item.attempt,
            is_durable: self.inner.journal.is_durable(),
        }
    }

    async fn finish_turn(&mut self, ended: Result<(Id, LaneTurnOutcome), JoinError>) {
        let (id, ended) = match ended {
            Ok((id, ended)) => (id, ended),
            Err(error) => (error.id(), self.aborted_outcome(&error)),
        };
        let Some(turn) = self.running.remove(&id) else {
            return;
        };
        let report = ended.report.as_ref();
        let is_answer_shown = report.is_some_and(|report| report.is_answer_shown);
        if ended.is_cancelled && self.inner.halt.is_cancelled() && !is_answer_shown {
            // The interrupted attempt does not count.
            let mut attempt = self.inbound_attempt(&turn.item);
            attempt.number = attempt.number.saturating_sub(1).max(1);
            let with = turn.item.merged_ids();
            let record = turn::started_record(&self.inner, &self.session_id, &attempt, with);
            return self.inner.journal.append_later(record);
        }
        let switch = report.and_then(|report| report.session_switch.clone());
        let is_unfinished = ended.unreported.is_some();
        let into = turn.item.id.clone();
        let mut done = turn.item.all_ids();
        if let Some(error) = ended.unreported {
            let hint = "the message stays in the journal; the next start processes it";
            tracing::error!(session_id = %self.session_id, inbound_id = %into, %error, hint, "lane.message_unfinished");
            turn.item.settle(MessageOutcome::Unfinished { error });
        } else if let Some(reason) = turn
            .end_reason
            // A message that has replies is answered, although its turn was cancelled.
            .filter(|_| ended.is_cancelled && ended.replies == 0)
        {
            self.drop_message(turn.item, reason);
            done.clear();
        } else {
            turn.item.settle(MessageOutcome::Done {
                replies: ended.replies,
                report: ended.report,
            });
        }
        if self.running.is_empty() {
            for item in self.collect_steered().await {
                done.extend(item.all_ids());
                if !is_unfinished {
                    item.settle(MessageOutcome::Joined {
                        message_id: into.clone(),
                    });
                }
            }
        }
        if let Some(to) = switch.filter(|to| *to != self.session_id) {
            self.move_chat(&turn.chat, &to);
        }
        if !done.is_empty() && !is_unfinished {
            let done = JournalRecord::Done { ids: done };
            self.inner.journal.append_later(done);
        }
        let mut running = self.running.values();
        // Notifies those who wait for the end of the turns that the lane cancelled.
        self.quit.take_if(|quit| {
            running.all(|turn| Some(&turn.item.id) == quit.except.as_ref() || !turn.is_ending())
        });
    }

    /// Returns the outcome of a turn whose task was aborted or panicked.
    fn aborted_outcome(&self, error: &JoinError) -> LaneTurnOutcome {
        let panicked = error.is_panic().then(|| {
            tracing::error!(session_id = %self.session_id, "lane.turn_panicked");
            Error::unknown("turn panicked; see the log for the panic")
        });
        LaneTurnOutcome {
            is_cancelled: error.is_cancelled(),
            unreported: panicked,
            ..LaneTurnOutcome::default()
        }
    }

    /// Moves the queued messages of a chat to the session that a turn switched the chat to.
    fn move_chat(&mut self, chat: &ChatKey, to: &SessionId) {
        // Messages that steer a running turn stay with it. They move only if the turn does not read them.
        for item in &mut self.steered {
            if item.chat_key() == *chat {
                item.moves_to = Some(to.clone());
            }
        }
        let (moved, remaining): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|item| item.chat_key() == *chat);
        self.pending = remaining;
        for item in moved {
            self.move_message(item, to);
        }
        for mut item in self.debounce.take_chat(chat) {
            item.was_held = true;
            Lanes::push_message(&self.inner, to, item);
        }
        for item in self.inner.lanes.switch_chat(chat, &self.session_id, to) {
            Lanes::push_message(&self.inner, to, item);
        }
    }

    /// Moves a queued message to the lane of another session.
    fn move_message(&self, mut item: QueuedMessage, to: &SessionId) {
        item.was_queued = true;
        Lanes::push_message(&self.inner, to, item);
    }

    /// Ends the lane when the gateway stops. Waits briefly for the running turns; queued messages stay in the journal.
    async fn finish_on_stop(mut self) {
        let turns_ended = async {
            while let Some(ended) = self.turns.join_next_with_id().await {
                self.finish_turn(ended).await;
            }
        };
        let _ = timeout(Duration::from_secs(2), turns_ended).await;
        self.inner.lanes.remove_lane(&self.inner, &self.session_id);
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.queue.close();
    }
}

fn set_steering_reason(message: &mut Envelope, reason: String) {
    let context = message.field("context").and_then(Value::as_object);
    let mut context = context.cloned().unwrap_or_default();
    context.insert("steering_reason".to_owned(), reason.into());
    message.set("context", context);
}
