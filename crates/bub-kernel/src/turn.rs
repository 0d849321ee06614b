//! A turn: the value that hooks, tools, the agent and the gateway share.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use bub_tape::{Entry, MemoryStore, PROVENANCE_KEY, Tape, TapeName};
use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::{
    envelope::{Envelope, MessageKind},
    environment::ExecutionEnvironment,
    error::{Error, ErrorKind, Result},
    framework::Framework,
    ids::{MessageId, SessionId, TurnId},
    inbound::Inbound,
    outbound::{Outbound, ReplyOrigin},
    prompt::Prompt,
    provenance::{Provenance, UntrustedSource},
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

/// The data of a turn, or of a nested run, such as a subagent. A nested run has its own session, state and tape.
#[derive(Clone)]
struct Inner {
    core: Arc<TurnCore>,
    session_id: SessionId,
    sender: Arc<Sender>,
    state: State,
    tape: Arc<TurnTape>,
    steering_inbox: Option<Arc<dyn SteeringInbox>>,
}

/// The data that a turn shares with its nested runs, such as subagents.
struct TurnCore {
    framework: Framework,
    inbound: Inbound,
    /// The tape of the turn, not of a nested run.
    tape: Arc<TurnTape>,
    is_closed: AtomicBool,
    environment: OnceLock<Arc<dyn ExecutionEnvironment>>,
    failure: OnceLock<Error>,
    progress: Mutex<TurnProgress>,
}

/// The progress of a turn.
#[derive(Default)]
struct TurnProgress {
    stage: Stage,
    replies_by_tool: u32,
    /// The report without the error, which is in [`TurnCore::failure`].
    report: TurnReport,
}

/// A stage of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
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

/// The result of a turn, for the channel that submitted the message.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TurnReport {
    /// The session of the turn.
    pub session_id: SessionId,
    /// The error that ended the turn, if any.
    pub error: Option<Error>,
    /// The last error that did not end the model stage, for example that the answer was truncated.
    pub model_error: Option<Error>,
    /// Whether no model is configured. If so, the output is a setup guide from bub, not the answer of a model.
    pub has_no_model: bool,
    /// The answer, or the partial answer after an error.
    pub output: String,
    /// Whether the channel has shown the complete answer while it was streamed.
    pub is_answer_shown: bool,
    /// The session that the turn switched the chat to, if any.
    pub session_switch: Option<SessionId>,
}

impl Turn {
    /// Creates the turn of a message whose session is resolved.
    pub(crate) fn new(framework: &Framework, inbound: Inbound, tape: TurnTape) -> Self {
        let tape = Arc::new(tape);
        let sender = inbound.sender();
        let provenance = Provenance::new(sender.role, inbound.untrusted.clone());
        tape.provenance.lock().add(&provenance);
        Self(Arc::new(Inner {
            session_id: inbound.session_id().cloned().unwrap_or_default(),
            sender,
            state: State::new(),
            tape: Arc::clone(&tape),
            steering_inbox: framework.steering_inbox(),
            core: Arc::new(TurnCore {
                framework: framework.clone(),
                inbound,
                tape,
                is_closed: AtomicBool::new(false),
                environment: OnceLock::new(),
                failure: OnceLock::new(),
                progress: Mutex::default(),
            }),
        }))
    }

    /// Creates a turn outside of the pipeline, with a tape in memory, for tests.
    pub fn detached(framework: &Framework, inbound: impl Into<Inbound>, state: State) -> Self {
        let mut inbound = inbound.into();
        inbound.set_default_session();
        let tape = TurnTape::in_memory(framework, &inbound);
        Self::new_detached(framework, inbound, tape, state)
    }

    /// Creates the local copy of a turn that another process runs, with that turn's id. The copy has an empty tape in
    /// memory and calls no hooks.
    pub fn remote(
        framework: &Framework,
        inbound: impl Into<Inbound>,
        state: State,
        id: TurnId,
    ) -> Self {
        let mut inbound = inbound.into();
        inbound.set_default_session();
        let session_id = inbound.session_id().cloned().unwrap_or_default();
        let name = TapeName::for_session(framework.workspace_text(), &session_id);
        let tape = Tape::new(Arc::new(MemoryStore::new()), name);
        let tape = TurnTape::new(tape, framework, &session_id, None).with_id(id);
        Self::new_detached(framework, inbound, tape, state)
    }

    fn new_detached(framework: &Framework, inbound: Inbound, tape: TurnTape, state: State) -> Self {
        let turn = Self::new(framework, inbound, tape);
        // The pipeline does not run this turn, so it has no record to complete.
        turn.0.core.is_closed.store(true, Ordering::Release);
        turn.with(|inner| inner.state = state)
    }

    /// Returns another view of the turn, with changed data.
    fn with(&self, change: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = (*self.0).clone();
        change(&mut inner);
        Self(Arc::new(inner))
    }

    /// Returns the id of the turn, which is the `run_id` of its tape entries.
    pub fn id(&self) -> &TurnId {
        self.0.tape.run_id()
    }

    /// Returns the id of the turn's session.
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

    /// Returns the sender whose permissions apply to the turn.
    pub fn sender(&self) -> &Sender {
        &self.0.sender
    }

    /// Records that the turn contains text from a source that its sender does not control, such as a web page. The tool
    /// policy then restricts what the turn may do. The mark also applies to nested runs, such as subagents, and to later
    /// turns with this text in their view. It cannot be removed.
    ///
    /// Call this before the text becomes part of the turn: in a tool before it returns, or in the hook `build_prompt`. A
    /// channel marks its messages with [`Inbound::with_untrusted`].
    pub fn mark_untrusted(&self, source: UntrustedSource) {
        let mut added = Provenance::default();
        added.untrusted.insert(source);
        self.add_provenance(&added);
    }

    pub(crate) fn add_provenance(&self, added: &Provenance) {
        self.0.tape.provenance.lock().add(added);
    }

    /// Returns the sources of text in this turn and its view that the sender does not control.
    pub fn untrusted_sources(&self) -> BTreeSet<UntrustedSource> {
        self.provenance().untrusted
    }

    /// Returns whose text the turn and its view contain.
    pub fn provenance(&self) -> Provenance {
        self.0.tape.provenance.lock().total()
    }

    /// Records that an owner accepts, for the rest of the turn, what the turn may do with the text that it contains now.
    pub fn accept_provenance(&self) {
        self.0.tape.provenance.lock().accept();
    }

    /// Returns whether an owner accepted the current [`Turn::provenance`].
    pub fn is_provenance_accepted(&self) -> bool {
        self.0.tape.provenance.lock().is_accepted()
    }

    /// Adds the provenance of an entry that a tool read from a tape.
    pub fn add_entry_provenance(&self, entry: &Entry) {
        if let Some(value) = entry.meta.get(PROVENANCE_KEY) {
            self.add_provenance(&Provenance::from_value(value));
        }
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

    /// Returns the environment of the turn and its nested runs, or `None` if its tools act on this machine.
    pub fn environment(&self) -> Option<&Arc<dyn ExecutionEnvironment>> {
        self.0.core.environment.get()
    }

    pub(crate) fn set_environment(&self, environment: Arc<dyn ExecutionEnvironment>) {
        let _ = self.0.core.environment.set(environment);
    }

    /// Returns the token that cancels the turn.
    pub fn cancel_token(&self) -> &CancellationToken {
        &self.0.core.inbound.cancel
    }

    fn progress(&self) -> MutexGuard<'_, TurnProgress> {
        self.0.core.progress.lock()
    }

    /// Returns the current stage.
    pub fn stage(&self) -> Stage {
        self.progress().stage
    }

    pub(crate) fn enter_stage(&self, stage: Stage) {
        self.progress().stage = stage;
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

    /// Makes the chat use another session from the next turn on. If this is called several times, the last call counts.
    pub fn switch_session(&self, session_id: SessionId) {
        self.progress().report.session_switch = Some(session_id);
    }

    /// Records that no model is configured. The report is only that of the turn, not of a nested run such as a subagent.
    pub fn mark_no_model(&self) {
        self.0.tape.mark_no_model();
        if Arc::ptr_eq(&self.0.tape, &self.0.core.tape) {
            self.progress().report.has_no_model = true;
        }
    }

    /// Records that the channel has shown the complete answer while it was streamed. If the turn is then interrupted,
    /// it is not resumed, because the sender has the answer.
    pub fn mark_answer_shown(&self) {
        self.progress().report.is_answer_shown = true;
    }

    /// Returns whether the channel has shown the complete answer while it was streamed.
    pub fn is_answer_shown(&self) -> bool {
        self.progress().report.is_answer_shown
    }

    /// If a tool sent a message to the chat of this turn, records it and returns `true`. The turn then does not send
    /// its answer to the chat, because the tool has already replied. Returns `false` for other chats.
    pub fn mark_sent_by_tool(&self, channel: &str, chat_id: &str) -> bool {
        let is_own_chat = self.is_own_chat(channel, chat_id);
        self.progress().replies_by_tool += u32::from(is_own_chat);
        is_own_chat
    }

    /// Reverts [`Turn::mark_sent_by_tool`] for a message that was not delivered.
    pub fn unmark_sent_by_tool(&self, channel: &str, chat_id: &str) {
        if self.is_own_chat(channel, chat_id) {
            let mut progress = self.progress();
            progress.replies_by_tool = progress.replies_by_tool.saturating_sub(1);
        }
    }

    /// Returns whether a tool sent a message to the chat of this turn, in this or an earlier attempt to process the
    /// inbound message.
    pub fn was_sent_by_tool(&self) -> bool {
        let target = self.0.core.inbound.reply_target.as_ref();
        self.progress().replies_by_tool > 0
            || target.is_some_and(|target| target.was_sent_by_tool())
    }

    /// Returns whether the turn's replies go to this chat.
    pub fn is_own_chat(&self, channel: &str, chat_id: &str) -> bool {
        let message = self.message();
        message.output_channel().as_deref() == Some(channel)
            && message.chat_id().as_deref().unwrap_or("default") == chat_id
    }

    /// Returns the error that ended the turn, if any.
    pub fn failure(&self) -> Option<&Error> {
        self.0.core.failure.get()
    }

    /// Returns the result of the turn so far.
    pub fn report(&self) -> TurnReport {
        TurnReport {
            session_id: self.0.session_id.clone(),
            error: self.failure().cloned(),
            ..self.progress().report.clone()
        }
    }

    pub(crate) fn set_model_error(&self, error: &Error) {
        self.progress().report.model_error = Some(error.clone());
    }

    pub(crate) fn set_output(&self, output: &str) {
        output.clone_into(&mut self.progress().report.output);
    }

    /// Creates a nested run with its own session, state and tape, such as a subagent.
    #[must_use]
    pub fn nested_run(&self, session_id: SessionId, state: State, mut tape: TurnTape) -> Self {
        tape.provenance = Arc::clone(&self.0.tape.provenance);
        self.with(|inner| {
            inner.session_id = session_id;
            inner.state = state;
            inner.tape = Arc::new(tape);
            // Messages for the session steer its turn, not a nested run.
            inner.steering_inbox = None;
        })
    }

    /// Returns this turn with the permissions of another sender and with a copy of the state. A comma command that
    /// steers the turn runs with the permissions of the command's sender.
    #[must_use]
    pub fn with_sender(&self, sender: Arc<Sender>) -> Self {
        self.with(|inner| {
            inner.sender = sender;
            inner.state = inner.state.deep_copy();
        })
    }

    /// Builds the prompt of a message. An empty prompt is replaced by the content of the message.
    pub async fn build_prompt(&self, message: &Envelope) -> Result<Prompt> {
        self.0.core.framework.build_prompt(message, self).await
    }

    /// Closes the turn, unless it is already closed: completes its record on the tape and frees the session.
    pub(crate) async fn close(&self, failure: Option<&Error>) {
        let core = &self.0.core;
        if core.is_closed.load(Ordering::Acquire) {
            return;
        }
        if let Some(error) = failure {
            let _ = core.failure.set(error.clone());
        }
        if let Err(error) = core.tape.close(self.message(), failure).await {
            tracing::error!(%error, "turn.record_failed");
        }
        core.is_closed.store(true, Ordering::Release);
    }
}

/// A guard that closes a turn whose future is dropped, even if clones of the turn still exist. The turn is recorded as
/// cancelled.
pub(crate) struct TurnGuard(pub(crate) Turn);

impl Drop for TurnGuard {
    fn drop(&mut self) {
        let core = &self.0.0.core;
        if core.is_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let failure = core.failure.get_or_init(cancelled_error).clone();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            core.tape.release_lease();
            return;
        };
        // Do not move the turn into the task: the turn owns its lifespan, which must end now.
        let (tape, message) = (Arc::clone(&core.tape), core.inbound.message.clone());
        let closing = async move {
            if let Err(error) = tape.close(&message, Some(&failure)).await {
                tracing::error!(%error, "turn.record_failed");
            }
        };
        drop(runtime.spawn(closing.in_current_span()));
    }
}

/// Returns the error of a cancelled turn.
pub(crate) fn cancelled_error() -> Error {
    Error::new(ErrorKind::Cancelled, "the turn was cancelled")
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
