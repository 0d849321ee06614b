//! What stands between the terminal and the gateway: lines go in here, and what turns do is heard here.

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bub_agent::usage::TokenCounts;
use bub_gateway::GatewayHandle;
use bub_kernel::{
    BoxFuture, CancellationToken, Channel, ChannelMessage, DropReason, Envelope, Error, ErrorKind,
    Framework, Inbound, InboundReceipt, LlmRequest, LlmResult, MessageHandler, MessageOutcome,
    Result, Sender, SessionId, StatePatch, Turn, TurnReport,
};
use bub_model::Catalog;
use bub_model::settings::MODEL;
use bub_settings::Settings;
use bub_tape::{LeaseWait, Tape};
use bub_terminal::{
    ChatEvent, ChatHost,
    channel::{
        AskApproval, CHANNEL_NAME, ChatEventSender, CliChannel, FIRST_RECOVERED_LINE, LineOutcome,
        OpenLines,
    },
    turn_view::StatusLine,
};

use super::session::{self, ChatSession};
use crate::cli::{approve::TerminalApprover, exit};

/// So long the end of a turn is waited for to tell of it.
const TURN_END_TIMEOUT: Duration = Duration::from_secs(5);

/// The hooks by which the chat of this process, if there is one, observes turns.
#[derive(Default)]
pub(crate) struct ChatHooks(OnceLock<Arc<ChatController>>);

impl ChatHooks {
    pub(super) fn attach(&self, chat_controller: &Arc<ChatController>) {
        // There is one chat in a process.
        let _ = self.0.set(Arc::clone(chat_controller));
    }

    /// The desk of a turn that the chat runs.
    fn chat_controller(&self, turn: &Turn) -> Option<&Arc<ChatController>> {
        let is_own = turn.message_id().is_some()
            && turn
                .message()
                .channel()
                .is_some_and(|name| name == CHANNEL_NAME);
        self.0.get().filter(|_| is_own)
    }
}

#[bub_macros::hooks(crate = bub_kernel)]
impl ChatHooks {
    fn after_llm_call(&self, request: &LlmRequest, result: &LlmResult, turn: &Turn) {
        if let Some(chat_controller) = self.chat_controller(turn) {
            chat_controller.count(&request.model, result);
        }
    }

    async fn load_state(&self, message: &Envelope, turn: &Turn) -> Option<StatePatch> {
        let chat_controller = self.chat_controller(turn)?;
        *lock(&chat_controller.resolved) = Some(turn.session_id().clone());
        let line = chat_controller.lines.line(turn.inbound());
        let content = message.content().into_owned();
        chat_controller
            .event_sender
            .emit(ChatEvent::TurnStarted { line, content })
            .await;
        None
    }

    async fn save_state(&self, turn: &Turn) {
        if let Some(chat_controller) = self.chat_controller(turn) {
            chat_controller
                .event_sender
                .emit(ChatEvent::TurnEnded)
                .await;
            chat_controller.send_status_later(turn);
        }
    }

    async fn on_error(&self, stage: &str, turn: Option<&Turn>) {
        let Some(turn) = turn.filter(|_| stage == "turn") else {
            return;
        };
        if let Some(chat_controller) = self.chat_controller(turn) {
            chat_controller
                .event_sender
                .emit(ChatEvent::TurnEnded)
                .await;
            chat_controller.send_status_later(turn);
        }
    }
}

/// What stands between the terminal and the gateway.
pub(super) struct ChatController {
    framework: Framework,
    settings: Arc<Settings>,
    catalogue: Option<Catalog>,
    event_sender: ChatEventSender,
    /// Whether the person can be asked here.
    asks: bool,
    session: Mutex<ChatSession>,
    /// The session of the last turn: a plugin may resolve another one than the chat's own.
    resolved: Mutex<Option<SessionId>>,
    lines: OpenLines,
    /// Cancels the line that is being submitted.
    submitting: Mutex<Option<CancellationToken>>,
    /// Held while a line is being submitted.
    submission: tokio::sync::Mutex<()>,
    terminal: TerminalApprover,
    handler: OnceLock<MessageHandler>,
    gateway: OnceLock<GatewayHandle>,
    /// The last turn that failed.
    failure: Mutex<Option<TurnReport>>,
    /// The number of the next line of an earlier chat.
    next_found: AtomicU64,
    spent: Mutex<ChatUsage>,
    /// The session that was last told of.
    told: tokio::sync::Mutex<String>,
    itself: Weak<Self>,
}

/// What the model calls of this chat came to.
#[derive(Clone, Debug, Default)]
struct ChatUsage {
    model: Option<String>,
    tokens: Option<u64>,
    cost: Option<f64>,
}

impl ChatController {
    pub(super) fn new(
        framework: &Framework,
        settings: &Arc<Settings>,
        event_sender: ChatEventSender,
        asks: bool,
        session: ChatSession,
    ) -> Arc<Self> {
        Arc::new_cyclic(|itself| Self {
            framework: framework.clone(),
            settings: Arc::clone(settings),
            catalogue: Catalog::new(settings).ok(),
            event_sender,
            asks,
            session: Mutex::new(session),
            resolved: Mutex::default(),
            lines: OpenLines::default(),
            submitting: Mutex::default(),
            submission: tokio::sync::Mutex::default(),
            terminal: TerminalApprover::default(),
            handler: OnceLock::new(),
            gateway: OnceLock::new(),
            failure: Mutex::new(None),
            next_found: AtomicU64::new(FIRST_RECOVERED_LINE),
            spent: Mutex::default(),
            told: tokio::sync::Mutex::default(),
            itself: itself.clone(),
        })
    }

    /// The channel of the chat, which hands its lines to this handler.
    pub(super) fn channel(&self, handler: &MessageHandler) -> Arc<dyn Channel> {
        let _ = self.handler.set(Arc::clone(handler));
        let taking = self.itself.clone();
        let take_up = move |message: &mut Inbound| {
            if let Some(chat_controller) = taking.upgrade() {
                chat_controller.adopt_line(message);
            }
        };
        let redactor = self.settings.redactor().clone();
        let asking = self.itself.clone();
        let ask: AskApproval = Box::new(move |request| {
            let chat_controller = asking.upgrade();
            Box::pin(async move {
                let chat_controller =
                    chat_controller.ok_or_else(|| Error::unknown("the chat has ended"))?;
                if chat_controller.asks {
                    Ok(chat_controller.event_sender.ask(request).await)
                } else {
                    // A pipe has the answers; the user is at the terminal, if there is one.
                    chat_controller.terminal.ask(request).await
                }
            })
        });
        Arc::new(CliChannel::new(
            self.event_sender.clone(),
            redactor,
            Box::new(take_up),
            ask,
        ))
    }

    pub(super) fn set_gateway(&self, gateway: GatewayHandle) {
        // There is one gateway in a chat.
        let _ = self.gateway.set(gateway);
    }

    /// The session in use.
    pub(super) fn session(&self) -> String {
        lock(&self.session).id.clone()
    }

    /// The session that turns of this chat run in.
    fn resolved(&self) -> SessionId {
        let resolved = lock(&self.resolved).clone();
        resolved.unwrap_or_else(|| SessionId::from(self.session()))
    }

    /// The name of the chat's journal: one for each chat of each workspace.
    pub(super) fn journal(&self) -> String {
        let session = lock(&self.session);
        let tape = bub_tape::TapeName::for_session(self.framework.workspace_text(), session.chat());
        let name: String = tape
            .as_str()
            .split("__")
            .flat_map(|half| half.chars().take(8))
            .collect();
        format!("chat-{name}")
    }

    pub(super) fn directory(&self) -> PathBuf {
        bub_gateway::directory(&self.settings, &self.journal())
    }

    pub(super) fn begin_another(&self) {
        let mut session = lock(&self.session);
        *session = session.another();
    }

    /// How the session is.
    pub(super) async fn status(&self) -> StatusLine {
        let session = self.resolved();
        let workspace = self.framework.workspace_text();
        let tape = bub_tape::TapeName::for_session(workspace, &session);
        let summary = match self.framework.tape_store() {
            Some(store) => store.summary(&tape).await.unwrap_or_default(),
            None => bub_tape::TapeSummary::default(),
        };
        let spent = lock(&self.spent).clone();
        let configured = || self.settings.get(&MODEL);
        let last = summary
            .usage
            .and_then(|usage| u64::try_from(usage.total_tokens).ok());
        StatusLine {
            session: session.into(),
            model: summary
                .model
                .or(spent.model)
                .or_else(configured)
                .unwrap_or_default(),
            entries: summary.entries,
            anchors: summary.anchors,
            last_tokens: spent.tokens.or(last),
            cost: spent.cost,
        }
    }

    /// The exit code of a chat through a pipe.
    pub(super) fn exit_code(&self) -> Result<ExitCode> {
        exit::exit_code(lock(&self.failure).as_ref())
    }

    fn count(&self, model: &str, result: &LlmResult) {
        let mut spent = lock(&self.spent);
        spent.model = Some(model.to_owned());
        let Some(tokens) = result.usage.as_ref().and_then(TokenCounts::from_usage) else {
            return;
        };
        spent.tokens = Some(tokens.total());
        let price = |model: &str| self.catalogue.as_ref()?.price(&model.parse().ok()?);
        if let Some(price) = price(model) {
            *spent.cost.get_or_insert(0.0) += tokens.cost(price);
        }
    }

    fn message(&self, text: String) -> Inbound {
        let session = lock(&self.session).clone();
        let message = ChannelMessage::new(&session.id, CHANNEL_NAME, text)
            .chat_id(&session.chat_id)
            .context("thread_id", session.id.clone())
            .active();
        let mut message = Inbound::from(message).with_sender(Sender::terminal());
        if session.is_chosen() {
            // The user named another session than the one that the chat's tape says.
            message.set_session_id(SessionId::from(session.id));
        }
        message
    }

    /// Goes where `,new` or `,resume` led, and says where that is.
    async fn follow_session_switch(&self) -> Result<String> {
        let mut session = lock(&self.session).clone();
        session.follow(&self.framework).await?;
        let now = session.id.clone();
        self.go(session);
        Ok(now)
    }

    fn go(&self, session: ChatSession) {
        let now = session.id.clone();
        let before = std::mem::replace(&mut *lock(&self.session), session);
        if now != before.id {
            *lock(&self.resolved) = None;
            // The money is that of the chat.
            let mut spent = lock(&self.spent);
            (spent.model, spent.tokens) = (None, None);
        }
    }

    /// Tells how the session is: which may be another one now.
    pub(super) async fn send_status(&self) {
        // One after the other: what is told last is what is so.
        let mut known = self.told.lock().await;
        if let Err(error) = self.follow_session_switch().await {
            tracing::warn!(%error, "chat.session_unknown");
        }
        let status = self.status().await;
        let is_new = std::mem::replace(&mut *known, status.session.clone()) != status.session;
        self.event_sender.emit(ChatEvent::Status(status)).await;
        if is_new && let Ok(mut all) = session::all(&self.framework).await {
            let chat = session::chat_of(&known);
            // The current one may have no tape yet.
            all.retain(|id| session::chat_of(id) == chat && *id != *known);
            all.insert(0, known.clone());
            self.event_sender.emit(ChatEvent::Sessions(all)).await;
        }
    }

    /// The same, once a turn is on its tape that no line of this chat waits for.
    fn send_status_later(&self, turn: &Turn) {
        if self.lines.line(turn.inbound()).is_some() {
            return;
        }
        let chat_controller = self.itself.clone();
        drop(tokio::spawn(async move {
            let Some(chat_controller) = chat_controller.upgrade() else {
                return;
            };
            let session = lock(&chat_controller.session).clone();
            if let Some(store) = chat_controller.framework.tape_store() {
                let tape = Tape::new(store, session.tape(&chat_controller.framework));
                drop(tape.lease(LeaseWait::For(TURN_END_TIMEOUT)).await);
            }
            chat_controller.send_status().await;
        }));
    }

    /// A line of an earlier chat on this session is a line of this one, from now on.
    fn adopt_line(&self, message: &mut Inbound) {
        if message.message.session_id().as_deref() != Some(self.session().as_str()) {
            return;
        }
        let line = self.next_found.fetch_add(1, Ordering::Relaxed);
        let receipt = self.lines.open(line, message);
        self.event_sender.emit_detached(ChatEvent::LineRecovered {
            line,
            content: message.message.content().into_owned(),
        });
        self.watch(line, receipt);
    }

    /// Tells what becomes of a line.
    fn watch(&self, line: u64, receipt: Arc<InboundReceipt>) {
        let chat_controller = self.itself.clone();
        drop(tokio::spawn(async move {
            let outcome = receipt.outcome().await;
            if let Some(chat_controller) = chat_controller.upgrade() {
                chat_controller.handle_outcome(line, outcome).await;
            }
        }));
    }

    /// A line is settled.
    async fn handle_outcome(&self, line: u64, outcome: MessageOutcome) {
        let (outcome, replies) = match outcome {
            MessageOutcome::Dropped { reason } => (self.dropped(&reason), 0),
            MessageOutcome::Done { replies, report } => {
                if let Some(report) = report {
                    self.record_report(report);
                }
                (LineOutcome::Answered, replies)
            }
            MessageOutcome::Unfinished { error } => {
                let reason = error.message().to_owned();
                self.set_failure(error);
                (LineOutcome::NotAnswered(reason), 0)
            }
            _ => (LineOutcome::Answered, 0),
        };
        self.send_status().await;
        let handle_outcome = ChatEvent::LineSettled {
            line,
            outcome,
            replies,
        };
        self.event_sender.emit(handle_outcome).await;
    }

    fn dropped(&self, reason: &DropReason) -> LineOutcome {
        match reason {
            DropReason::Withdrawn => LineOutcome::Withdrawn,
            DropReason::Cancelled | DropReason::SessionQuit => {
                LineOutcome::NotAnswered(reason.to_string())
            }
            _ => {
                let text = format!("the message was not answered: {reason}");
                self.set_failure(Error::unknown(text));
                LineOutcome::NotAnswered(reason.to_string())
            }
        }
    }

    /// The outcome of a line that was not accepted, and the number of replies that say so.
    fn rejected(&self, error: Error) -> (LineOutcome, u32) {
        if error.kind() == ErrorKind::Cancelled {
            return (
                LineOutcome::NotAnswered(DropReason::Cancelled.to_string()),
                0,
            );
        }
        let outcome = if error.is_reported() {
            (LineOutcome::Rejected, 1)
        } else {
            (LineOutcome::NotAnswered(error.message().to_owned()), 0)
        };
        self.set_failure(error);
        outcome
    }

    fn set_failure(&self, error: Error) {
        let mut report = TurnReport::default();
        report.error = Some(error);
        *lock(&self.failure) = Some(report);
    }

    /// Hands a line to the gateway, which has it on disk when this returns.
    async fn accept(&self, line: u64, text: String) -> Result<()> {
        let _submission = self.submission.lock().await;
        let handler = self.handler.get();
        let handler = handler.ok_or_else(|| Error::unknown("the chat is not running"))?;
        self.follow_session_switch().await?;
        let mut message = self.message(text);
        let receipt = self.lines.open(line, &mut message);
        // Until the line is in a lane, which `cancel` reaches: its session is still to be resolved.
        *lock(&self.submitting) = Some(message.cancel.clone());
        let accepted = handler(message).await;
        *lock(&self.submitting) = None;
        accepted?;
        self.watch(line, receipt);
        Ok(())
    }

    /// Cancels the line that is being submitted, if any, and waits until that is recorded.
    pub(super) async fn cancel_submission(&self) {
        self.cancel_submitted();
        let _submission = self.submission.lock().await;
    }

    fn cancel_submitted(&self) {
        if let Some(submitting) = &*lock(&self.submitting) {
            submitting.cancel();
        }
    }

    /// Keeps what the chat has to know of a turn.
    fn record_report(&self, report: TurnReport) {
        // Also where it leads to what the tape has said before.
        if let Some(id) = &report.session_switch {
            let mut session = lock(&self.session).clone();
            session.go(id);
            self.go(session);
        }
        let failure = exit::failure(&report);
        if failure.is_some_and(|error| error.kind() != ErrorKind::Cancelled) {
            *lock(&self.failure) = Some(report);
        }
    }
}

impl ChatHost for ChatController {
    fn submit(&self, line: u64, text: String) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let happening = match self.accept(line, text).await {
                Ok(()) => ChatEvent::LineAccepted(line),
                Err(error) => {
                    let (outcome, replies) = self.rejected(error);
                    ChatEvent::LineSettled {
                        line,
                        outcome,
                        replies,
                    }
                }
            };
            self.event_sender.emit(happening).await;
        })
    }

    fn cancel(&self) -> BoxFuture<'_, ()> {
        self.cancel_submitted();
        if let Some(gateway) = self.gateway.get() {
            gateway.cancel(&self.resolved());
        }
        Box::pin(std::future::ready(()))
    }

    fn withdraw(&self) {
        if let Some(gateway) = self.gateway.get() {
            gateway.withdraw(&self.resolved());
        }
    }

    fn quit(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.cancel_submission().await;
            if let Some(router) = self.framework.router() {
                let session = self.resolved();
                let _ = router.quit(&session, None).await;
            }
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
