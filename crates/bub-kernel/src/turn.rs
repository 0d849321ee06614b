//! A turn: the value that hooks, tools, the agent and the gateway share.

use std::{
    borrow::Cow,
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering},
    },
};

use bub_tape::{MemoryStore, Tape, TapeName};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::{
    envelope::{Envelope, MessageKind},
    error::{Error, ErrorKind, Result},
    framework::Framework,
    ids::{MessageId, SessionId, TurnId},
    inbound::Inbound,
    outbound::{Outbound, ReplyOrigin},
    prompt::Prompt,
    sender::Sender,
    state::State,
    steering::SteeringInbox,
    turn_tape::TurnTape,
};

/// One inbound message that is processed through all stages.
///
/// Cloning is cheap, and clones share one turn. A turn exists from the time its session is resolved. It is closed
/// exactly once: its tape record is completed and the session is freed. If the future of the turn is dropped, the turn
/// is closed in the background.
#[derive(Clone)]
pub struct Turn(Arc<Inner>);

/// One run of a turn: the turn itself, or a nested run.
struct Inner {
    core: Arc<TurnCore>,
    session_id: SessionId,
    sender: Arc<Sender>,
    state: State,
    tape: Arc<TurnTape>,
    steering_inbox: Option<Arc<dyn SteeringInbox>>,
}

/// The data that a turn shares with its nested runs.
struct TurnCore {
    framework: Framework,
    inbound: Inbound,
    /// The tape of the turn itself.
    tape: Arc<TurnTape>,
    progress: TurnStatus,
}

/// The progress of a turn.
#[derive(Default)]
struct TurnStatus {
    stage: AtomicU8,
    is_closed: AtomicBool,
    replies_by_tool: AtomicU32,
    has_no_model: AtomicBool,
    is_answer_shown: AtomicBool,
    session_switch: Mutex<Option<SessionId>>,
    failure: OnceLock<Error>,
    model_error: Mutex<Option<Error>>,
    output: Mutex<String>,
}

/// A stage of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Stage {
    /// Plugins resolve the session.
    #[default]
    ResolveSession,
    /// Plugins add values to the state.
    LoadState,
    /// A plugin builds the prompt.
    BuildPrompt,
    /// A plugin runs the model.
    RunModel,
    /// Plugins save their data.
    SaveState,
    /// Plugins render the output as messages.
    Render,
    /// Plugins deliver the messages.
    Dispatch,
}

impl Stage {
    const ALL: [Self; 7] = [
        Self::ResolveSession,
        Self::LoadState,
        Self::BuildPrompt,
        Self::RunModel,
        Self::SaveState,
        Self::Render,
        Self::Dispatch,
    ];

    /// Returns the name of the stage's hook, which logs use.
    pub fn name(self) -> &'static str {
        match self {
            Self::ResolveSession => "resolve_session",
            Self::LoadState => "load_state",
            Self::BuildPrompt => "build_prompt",
            Self::RunModel => "run_model",
            Self::SaveState => "save_state",
            Self::Render => "render_outbound",
            Self::Dispatch => "dispatch_outbound",
        }
    }
}

/// The result of a turn, for the channel that submitted the message.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TurnReport {
    /// The session.
    pub session_id: SessionId,
    /// The error that ended the turn.
    pub error: Option<Error>,
    /// The last error of the model stage that did not end the turn, such as a truncated answer.
    pub model_error: Option<Error>,
    /// Whether no model is configured. The output then comes from bub and not from a model.
    pub has_no_model: bool,
    /// The answer, or the partial answer after an error.
    pub output: String,
    /// Whether the channel has shown the complete answer while it was streamed.
    pub is_answer_shown: bool,
    /// The new session of the chat, if the turn switched it.
    pub session_switch: Option<SessionId>,
}

impl Turn {
    pub(crate) fn new(
        framework: &Framework,
        session_id: SessionId,
        inbound: Inbound,
        tape: TurnTape,
    ) -> Self {
        let tape = Arc::new(tape);
        Self(Arc::new(Inner {
            session_id,
            sender: inbound.sender(),
            state: State::new(),
            tape: Arc::clone(&tape),
            steering_inbox: framework.steering_inbox(),
            core: Arc::new(TurnCore {
                framework: framework.clone(),
                inbound,
                tape,
                progress: TurnStatus::default(),
            }),
        }))
    }

    /// Creates a turn outside of the pipeline, with a tape in memory, for tests.
    pub fn detached(framework: &Framework, inbound: impl Into<Inbound>, state: State) -> Self {
        let (inbound, session_id) = ensure_session_id(inbound.into());
        let tape = TurnTape::in_memory(framework, &session_id, None);
        Self::new_detached(framework, session_id, inbound, tape, state)
    }

    /// Creates the local copy of a turn that another process runs, with that turn's id. The copy has an empty tape in
    /// memory and calls no hooks.
    pub fn remote(
        framework: &Framework,
        inbound: impl Into<Inbound>,
        state: State,
        id: TurnId,
    ) -> Self {
        let (inbound, session_id) = ensure_session_id(inbound.into());
        let name = TapeName::for_session(framework.workspace_text(), &session_id);
        let tape = Tape::new(Arc::new(MemoryStore::new()), name);
        let tape = TurnTape::new(tape, framework, &session_id, None).with_id(id);
        Self::new_detached(framework, session_id, inbound, tape, state)
    }

    fn new_detached(
        framework: &Framework,
        session_id: SessionId,
        inbound: Inbound,
        tape: TurnTape,
        state: State,
    ) -> Self {
        let turn = Self::new(framework, session_id, inbound, tape);
        // The pipeline does not run this turn, so it has no record to complete.
        let is_closed = &turn.0.core.progress.is_closed;
        is_closed.store(true, Ordering::Release);
        turn.with_state(state)
    }

    fn with_state(self, state: State) -> Self {
        let inner = &self.0;
        Self(Arc::new(Inner {
            core: Arc::clone(&inner.core),
            session_id: inner.session_id.clone(),
            sender: Arc::clone(&inner.sender),
            state,
            tape: Arc::clone(&inner.tape),
            steering_inbox: inner.steering_inbox.clone(),
        }))
    }

    /// Returns the id of the turn, which is the `run_id` of its tape entries.
    pub fn id(&self) -> &TurnId {
        self.0.tape.run_id()
    }

    /// Returns the session.
    pub fn session_id(&self) -> &SessionId {
        &self.0.session_id
    }

    /// Returns the inbound message with its metadata.
    pub fn inbound(&self) -> &Inbound {
        &self.0.core.inbound
    }

    /// Returns the envelope of the inbound message.
    pub fn message(&self) -> &Envelope {
        &self.0.core.inbound.message
    }

    /// Returns the journal id of the inbound message, if it has one.
    pub fn message_id(&self) -> Option<&MessageId> {
        self.0.core.inbound.message_id()
    }

    /// Returns the sender whose permissions apply.
    pub fn sender(&self) -> &Sender {
        &self.0.sender
    }

    /// Returns the state that all hooks of the turn share.
    pub fn state(&self) -> &State {
        &self.0.state
    }

    /// Returns the tape of the turn.
    pub fn tape(&self) -> &TurnTape {
        &self.0.tape
    }

    /// Returns the framework that runs the turn.
    pub fn framework(&self) -> &Framework {
        &self.0.core.framework
    }

    /// Returns the token that cancels the turn.
    pub fn cancel_token(&self) -> &CancellationToken {
        &self.0.core.inbound.cancel
    }

    /// Returns the current stage.
    pub fn stage(&self) -> Stage {
        let index = self.0.core.progress.stage.load(Ordering::Relaxed);
        Stage::ALL
            .into_iter()
            .find(|stage| *stage as u8 == index)
            .unwrap_or_default()
    }

    pub(crate) fn enter_stage(&self, stage: Stage) {
        self.0
            .core
            .progress
            .stage
            .store(stage as u8, Ordering::Relaxed);
    }

    pub(crate) fn steering_inbox(&self) -> Option<&Arc<dyn SteeringInbox>> {
        self.0.steering_inbox.as_ref()
    }

    /// Delivers a message through the turn's reply target or, without one, the framework's router. Returns `false` if
    /// no channel accepts it.
    pub async fn deliver(&self, reply: impl Into<Outbound>) -> Result<bool> {
        let mut reply = reply.into();
        let is_notice = reply.origin == ReplyOrigin::Turn
            && reply.kind() == MessageKind::Error
            && (self.failure().is_some() || self.stage() < Stage::Render);
        if is_notice {
            reply.origin = ReplyOrigin::Notice;
        }
        if let Some(target) = &self.0.core.inbound.reply_target {
            return target.deliver(self, reply).await;
        }
        match self.0.core.framework.router() {
            Some(router) => router.dispatch(reply).await,
            None => Ok(false),
        }
    }

    /// Makes the chat use another session from the next turn on. If the turn switches several times, the last switch counts.
    pub fn switch_session(&self, session_id: SessionId) {
        *lock(&self.0.core.progress.session_switch) = Some(session_id);
    }

    /// Records that no model is configured. Has no effect in a nested run.
    pub fn mark_no_model(&self) {
        if !Arc::ptr_eq(&self.0.tape, &self.0.core.tape) {
            return;
        }
        self.0
            .core
            .progress
            .has_no_model
            .store(true, Ordering::Relaxed);
    }

    /// Records that the channel has shown the complete answer while it was streamed. If the turn is then interrupted, it
    /// is not resumed, because the sender has the answer.
    pub fn mark_answer_shown(&self) {
        self.0
            .core
            .progress
            .is_answer_shown
            .store(true, Ordering::Relaxed);
    }

    /// Returns whether the channel has shown the complete answer while it was streamed.
    pub fn is_answer_shown(&self) -> bool {
        self.0.core.progress.is_answer_shown.load(Ordering::Relaxed)
    }

    /// Records that a tool sent a message to a chat. Returns whether it is the chat of this turn, which then gets no
    /// plain reply.
    pub fn mark_sent_by_tool(&self, channel: &str, chat_id: &str) -> bool {
        let is_own_chat = self.is_own_chat(channel, chat_id);
        self.0
            .core
            .progress
            .replies_by_tool
            .fetch_add(is_own_chat.into(), Ordering::Relaxed);
        is_own_chat
    }

    /// Reverts [`Turn::mark_sent_by_tool`] for a message that was not delivered.
    pub fn unmark_sent_by_tool(&self, channel: &str, chat_id: &str) {
        if self.is_own_chat(channel, chat_id) {
            let _ = self.0.core.progress.replies_by_tool.fetch_update(
                Ordering::Relaxed,
                Ordering::Relaxed,
                |count| count.checked_sub(1),
            );
        }
    }

    /// Returns whether a tool sent a message to the chat of this turn, in this or an earlier attempt.
    pub fn was_sent_by_tool(&self) -> bool {
        let core = &self.0.core;
        core.progress.replies_by_tool.load(Ordering::Relaxed) > 0
            || core
                .inbound
                .reply_target
                .as_ref()
                .is_some_and(|target| target.was_sent_by_tool())
    }

    /// Returns whether the turn's replies go to this chat.
    pub fn is_own_chat(&self, channel: &str, chat_id: &str) -> bool {
        let message = self.message();
        message.output_channel().as_deref() == Some(channel)
            && message.chat_id().as_deref().unwrap_or("default") == chat_id
    }

    /// Returns the error that ended the turn.
    pub fn failure(&self) -> Option<&Error> {
        self.0.core.progress.failure.get()
    }

    /// Returns the result of the turn so far.
    pub fn report(&self) -> TurnReport {
        let progress = &self.0.core.progress;
        TurnReport {
            session_id: self.0.session_id.clone(),
            error: progress.failure.get().cloned(),
            model_error: lock(&progress.model_error).clone(),
            has_no_model: progress.has_no_model.load(Ordering::Relaxed),
            output: lock(&progress.output).clone(),
            is_answer_shown: progress.is_answer_shown.load(Ordering::Relaxed),
            session_switch: lock(&progress.session_switch).clone(),
        }
    }

    pub(crate) fn set_failure(&self, error: &Error) {
        let _ = self.0.core.progress.failure.set(error.clone());
    }

    pub(crate) fn set_model_error(&self, error: &Error) {
        *lock(&self.0.core.progress.model_error) = Some(error.clone());
    }

    pub(crate) fn set_output(&self, output: &str) {
        output.clone_into(&mut lock(&self.0.core.progress.output));
    }

    /// Creates a nested run with its own session, state and tape, such as a subagent.
    #[must_use]
    pub fn nested_run(&self, session_id: SessionId, state: State, tape: TurnTape) -> Self {
        Self(Arc::new(Inner {
            core: Arc::clone(&self.0.core),
            session_id,
            sender: Arc::clone(&self.0.sender),
            state,
            tape: Arc::new(tape),
            // Messages for the session steer its turn, not a nested run.
            steering_inbox: None,
        }))
    }

    /// Returns the turn with the permissions of another sender and a copy of its state, for a command that steered it.
    #[must_use]
    pub fn with_sender(&self, sender: Arc<Sender>) -> Self {
        let inner = &self.0;
        Self(Arc::new(Inner {
            core: Arc::clone(&inner.core),
            session_id: inner.session_id.clone(),
            sender,
            state: inner.state.deep_copy(),
            tape: Arc::clone(&inner.tape),
            steering_inbox: inner.steering_inbox.clone(),
        }))
    }

    /// Builds the prompt of a message. An empty prompt is replaced by the content of the message.
    pub async fn build_prompt(&self, message: &Envelope) -> Result<Prompt> {
        self.0.core.framework.build_prompt(message, self).await
    }

    /// Closes the turn, unless it is closed: completes its record and frees the session.
    pub(crate) async fn close(&self, failure: Option<&Error>) {
        let core = &self.0.core;
        if core.progress.is_closed.load(Ordering::Acquire) {
            return;
        }
        if let Some(error) = failure {
            self.set_failure(error);
        }
        if let Err(error) = core.tape.close(self.message(), failure).await {
            tracing::error!(%error, "turn.record_failed");
        }
        core.progress.is_closed.store(true, Ordering::Release);
    }
}

/// A guard that closes a turn whose future is dropped, even if clones of the turn still exist. The turn is recorded as
/// cancelled.
pub(crate) struct TurnGuard(pub(crate) Turn);

impl Drop for TurnGuard {
    fn drop(&mut self) {
        let core = &self.0.0.core;
        if core.progress.is_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let failure = core.progress.failure.get_or_init(cancelled_error).clone();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            core.tape.release_lease();
            return;
        };
        // The task must not hold the turn, because the turn's lifespan ends now.
        let (tape, message) = (Arc::clone(&core.tape), core.inbound.message.clone());
        let closing = async move {
            if let Err(error) = tape.close(&message, Some(&failure)).await {
                tracing::error!(%error, "turn.record_failed");
            }
        };
        drop(runtime.spawn(closing.in_current_span()));
    }
}

/// Sets the default session of a message that has none, without calling the hook `resolve_session`. Returns the message
/// and its session.
fn ensure_session_id(mut inbound: Inbound) -> (Inbound, SessionId) {
    if let Some(session_id) = inbound.session_id() {
        let session_id = session_id.clone();
        return (inbound, session_id);
    }
    let session_id = inbound.message.session_id();
    let session_id = session_id.map_or_else(|| inbound.message.chat_session_id(), Cow::into_owned);
    let session_id = SessionId::from(session_id);
    inbound.set_session_id(session_id.clone());
    (inbound, session_id)
}

/// Returns the error of a cancelled turn.
pub(crate) fn cancelled_error() -> Error {
    Error::new(ErrorKind::Cancelled, "the turn was cancelled")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn")
            .field("id", self.id())
            .field("session_id", self.session_id())
            .field("stage", &self.stage())
            .finish_non_exhaustive()
    }
}
