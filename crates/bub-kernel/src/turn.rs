//! One turn: the value that hooks, tools, the agent and the gateway share.

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

/// One inbound message on its way through all stages.
///
/// A handle: clones are the same turn. A turn exists as soon as its session is named, and is closed exactly once,
/// however it ends: its record is completed and the session is freed. If its future is dropped, that is done in the
/// background.
#[derive(Clone)]
pub struct Turn(Arc<Inner>);

/// The turn as one run sees it: the turn itself, or a run nested in it.
struct Inner {
    core: Arc<TurnCore>,
    session_id: SessionId,
    sender: Arc<Sender>,
    state: State,
    tape: Arc<TurnTape>,
    steering_inbox: Option<Arc<dyn SteeringInbox>>,
}

/// What a turn and its nested runs share.
struct TurnCore {
    framework: Framework,
    inbound: Inbound,
    /// The tape of the turn itself.
    tape: Arc<TurnTape>,
    progress: TurnStatus,
}

/// How far a turn has come.
#[derive(Default)]
struct TurnStatus {
    stage: AtomicU8,
    is_closed: AtomicBool,
    replies_by_tool: AtomicU32,
    has_no_model: AtomicBool,
    session_switch: Mutex<Option<SessionId>>,
    failure: OnceLock<Error>,
    model_error: Mutex<Option<Error>>,
    output: Mutex<String>,
}

/// The stages of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Stage {
    /// The session is being named.
    #[default]
    ResolveSession,
    /// Plugins contribute to the state.
    LoadState,
    /// The prompt is built.
    BuildPrompt,
    /// The model runs.
    RunModel,
    /// Plugins save what they want to keep.
    SaveState,
    /// The output becomes messages.
    Render,
    /// Messages are delivered.
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

    /// The name in logs: that of the stage's hook.
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

/// The result of a turn, for whoever submitted its message.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TurnReport {
    /// The session.
    pub session_id: SessionId,
    /// The error that ended the turn.
    pub error: Option<Error>,
    /// The last error of the model stage that did not end the turn, such as a truncated answer.
    pub model_error: Option<Error>,
    /// Whether no model is configured, so that the answer is not a model's.
    pub has_no_model: bool,
    /// The answer. After an error, what there was of it.
    pub output: String,
    /// The session that the chat uses from now on, if the turn switched it.
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

    /// A turn outside of the pipeline, with a tape in memory, for tests.
    pub fn detached(framework: &Framework, inbound: impl Into<Inbound>, state: State) -> Self {
        let (inbound, session_id) = with_session(inbound.into());
        let tape = TurnTape::in_memory(framework, &session_id, None);
        Self::new_detached(framework, session_id, inbound, tape, state)
    }

    /// A turn that another process runs, under the id that it has there. It has an empty tape in memory, and no hook is
    /// called to make it.
    pub fn remote(
        framework: &Framework,
        inbound: impl Into<Inbound>,
        state: State,
        id: TurnId,
    ) -> Self {
        let (inbound, session_id) = with_session(inbound.into());
        let name = TapeName::for_session(framework.workspace_text(), &session_id);
        let tape = Tape::new(Arc::new(MemoryStore::new()), name);
        let tape = TurnTape::new(tape, framework, &session_id, None).identified_by(id);
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
        // The pipeline does not run it, so there is no record to complete.
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

    /// The id of the turn: the `run_id` of its tape entries.
    pub fn id(&self) -> &TurnId {
        self.0.tape.run_id()
    }

    /// The session.
    pub fn session_id(&self) -> &SessionId {
        &self.0.session_id
    }

    /// What the turn was started with.
    pub fn inbound(&self) -> &Inbound {
        &self.0.core.inbound
    }

    /// The inbound message.
    pub fn message(&self) -> &Envelope {
        &self.0.core.inbound.message
    }

    /// The journaled message that the turn processes.
    pub fn message_id(&self) -> Option<&MessageId> {
        self.0.core.inbound.message_id()
    }

    /// The sender whose rights apply.
    pub fn sender(&self) -> &Sender {
        &self.0.sender
    }

    /// The state that all hooks of the turn share.
    pub fn state(&self) -> &State {
        &self.0.state
    }

    /// The tape of the turn.
    pub fn tape(&self) -> &TurnTape {
        &self.0.tape
    }

    /// The framework that runs the turn.
    pub fn framework(&self) -> &Framework {
        &self.0.core.framework
    }

    /// Fires when the turn is cancelled.
    pub fn cancel(&self) -> &CancellationToken {
        &self.0.core.inbound.cancel
    }

    /// The current stage.
    pub fn stage(&self) -> Stage {
        let index = self.0.core.progress.stage.load(Ordering::Relaxed);
        Stage::ALL
            .into_iter()
            .find(|stage| *stage as u8 == index)
            .unwrap_or_default()
    }

    pub(crate) fn enter(&self, stage: Stage) {
        self.0
            .core
            .progress
            .stage
            .store(stage as u8, Ordering::Relaxed);
    }

    pub(crate) fn steering_inbox(&self) -> Option<&Arc<dyn SteeringInbox>> {
        self.0.steering_inbox.as_ref()
    }

    /// Delivers a message to the turn's reply target, or else to the framework's router; `false` if no channel takes it.
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

    /// Makes the chat use another session from the next turn on. The last switch counts, as on the tape.
    pub fn switch_session(&self, session_id: SessionId) {
        *lock(&self.0.core.progress.session_switch) = Some(session_id);
    }

    /// Notes that no model is configured. A nested run does not decide that for its turn.
    pub fn set_no_model(&self) {
        if !Arc::ptr_eq(&self.0.tape, &self.0.core.tape) {
            return;
        }
        self.0
            .core
            .progress
            .has_no_model
            .store(true, Ordering::Relaxed);
    }

    /// Notes that a tool sent a message to a chat; returns whether that is the chat of this turn, which then gets no
    /// plain reply.
    pub fn mark_sent_by_tool(&self, channel: &str, chat_id: &str) -> bool {
        let is_own = self.is_own_chat(channel, chat_id);
        self.0
            .core
            .progress
            .replies_by_tool
            .fetch_add(is_own.into(), Ordering::Relaxed);
        is_own
    }

    /// Notes that a message which a tool sent to a chat was not delivered.
    pub fn unmark_sent_by_tool(&self, channel: &str, chat_id: &str) {
        if self.is_own_chat(channel, chat_id) {
            let _ = self.0.core.progress.replies_by_tool.fetch_update(
                Ordering::Relaxed,
                Ordering::Relaxed,
                |count| count.checked_sub(1),
            );
        }
    }

    /// Whether a tool sent a message to the chat of this turn, in this or an earlier attempt.
    pub fn was_sent_by_tool(&self) -> bool {
        let core = &self.0.core;
        core.progress.replies_by_tool.load(Ordering::Relaxed) > 0
            || core
                .inbound
                .reply_target
                .as_ref()
                .is_some_and(|target| target.was_sent_by_tool())
    }

    /// Whether this is the chat that the turn's replies go to.
    pub fn is_own_chat(&self, channel: &str, chat_id: &str) -> bool {
        let message = self.message();
        message.output_channel().as_deref() == Some(channel)
            && message.chat_id().as_deref().unwrap_or("default") == chat_id
    }

    /// The error that ended the turn.
    pub fn failure(&self) -> Option<&Error> {
        self.0.core.progress.failure.get()
    }

    /// The result of the turn so far.
    pub fn report(&self) -> TurnReport {
        let progress = &self.0.core.progress;
        TurnReport {
            session_id: self.0.session_id.clone(),
            error: progress.failure.get().cloned(),
            model_error: lock(&progress.model_error).clone(),
            has_no_model: progress.has_no_model.load(Ordering::Relaxed),
            output: lock(&progress.output).clone(),
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

    /// A nested run in the same turn, with its own session, state and tape: a subagent.
    #[must_use]
    pub fn nested(&self, session_id: SessionId, state: State, tape: TurnTape) -> Self {
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

    /// The same turn with the rights of another sender, for a command that steered it.
    #[must_use]
    pub fn on_behalf_of(&self, sender: Arc<Sender>) -> Self {
        let inner = &self.0;
        Self(Arc::new(Inner {
            core: Arc::clone(&inner.core),
            session_id: inner.session_id.clone(),
            sender,
            state: inner.state.detached(),
            tape: Arc::clone(&inner.tape),
            steering_inbox: inner.steering_inbox.clone(),
        }))
    }

    /// Builds the prompt of a message; an empty one is replaced by the content of the message.
    pub async fn build_prompt_of(&self, message: &Envelope) -> Result<Prompt> {
        self.0.core.framework.build_prompt(message, self).await
    }

    /// Closes the turn, once: completes its record and frees the session.
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

/// Closes a turn whose future is dropped, even if clones of the turn live on: its record says that it was cancelled.
pub(crate) struct TurnGuard(pub(crate) Turn);

impl Drop for TurnGuard {
    fn drop(&mut self) {
        let core = &self.0.0.core;
        if core.progress.is_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let failure = core.progress.failure.get_or_init(cancelled_error).clone();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            core.tape.release();
            return;
        };
        // The task does not share the turn, whose lifespan ends now.
        let (tape, message) = (Arc::clone(&core.tape), core.inbound.message.clone());
        let closing = async move {
            if let Err(error) = tape.close(&message, Some(&failure)).await {
                tracing::error!(%error, "turn.record_failed");
            }
        };
        drop(runtime.spawn(closing.in_current_span()));
    }
}

/// Names the session of a message that the hook `resolve_session` is not asked about.
fn with_session(mut inbound: Inbound) -> (Inbound, SessionId) {
    if let Some(session_id) = inbound.session_id() {
        let session_id = session_id.clone();
        return (inbound, session_id);
    }
    let own = inbound.message.session_id();
    let session_id = own.map_or_else(|| inbound.message.chat_session(), Cow::into_owned);
    let session_id = SessionId::from(session_id);
    inbound.set_session_id(session_id.clone());
    (inbound, session_id)
}

/// The error of a cancelled turn.
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
