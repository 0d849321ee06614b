//! Connects the terminal and the gateway: passes lines to the gateway and reports turns to the terminal.

use std::{
    collections::VecDeque,
    process::ExitCode,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bub_agent::{tools::context_left, usage::TokenCounts};
use bub_gateway::GatewayHandle;
use bub_kernel::{
    CancellationToken, Channel, ChannelMessage, DropReason, Envelope, Error, ErrorKind, Framework,
    Inbound, InboundReceipt, LlmRequest, LlmResult, MediaItem, MessageHandler, MessageOutcome,
    Result, Sender, SessionId, StatePatch, Turn, TurnReport, async_trait, command_line,
};
use bub_model::settings::ModelSettings;
use bub_model::{Catalog, ModelId};
use bub_settings::Settings;
use bub_tape::{LeaseWait, Tape, TapeName, TapeSummary};
use bub_terminal::{
    ChatEvent, ChatHost,
    channel::{
        AskApproval, CHANNEL_NAME, ChatEventSender, CliChannel, FIRST_RECOVERED_LINE, LineOutcome,
        OpenLines,
    },
    chat::LastExchange,
    editor::image_marker,
    turn_view::StatusLine,
};

use parking_lot::Mutex;

use super::{
    clipboard,
    session::{self, ChatSession},
};
use crate::cli::{
    approve::TerminalApprover,
    exit,
    run::{ModelArgs, mentions::Mentions},
};

/// How long the controller waits for the end of a turn before it reports the status.
const TURN_END_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of images from the clipboard that are kept, so that a line with their marker can be sent again.
const MAX_CLIPBOARD_IMAGES: usize = 8;

/// Hooks through which the chat of this process, if any, observes turns.
#[derive(Default)]
pub(crate) struct ChatHooks(OnceLock<Arc<ChatController>>);

impl ChatHooks {
    pub(super) fn attach(&self, chat_controller: &Arc<ChatController>) {
        // A process has at most one chat.
        let _ = self.0.set(Arc::clone(chat_controller));
    }

    /// Returns the controller if the chat runs this turn.
    fn chat_controller(&self, turn: &Turn) -> Option<&Arc<ChatController>> {
        let channel = turn.message().channel();
        let is_chat_turn = turn.message_id().is_some() && channel.as_deref() == Some(CHANNEL_NAME);
        self.0.get().filter(|_| is_chat_turn)
    }
}

#[bub_macros::hooks(crate = bub_kernel)]
impl ChatHooks {
    fn after_llm_call(&self, request: &LlmRequest, result: &LlmResult, turn: &Turn) {
        if let Some(chat_controller) = self.chat_controller(turn) {
            chat_controller.add_usage(&request.model, result);
        }
    }

    async fn load_state(&self, message: &Envelope, turn: &Turn) -> Option<StatePatch> {
        let chat_controller = self.chat_controller(turn)?;
        *chat_controller.resolved.lock() = Some(turn.session_id().clone());
        let line = chat_controller.lines.line_number(turn.inbound());
        let content = message.content().into_owned();
        let started = ChatEvent::TurnStarted { line, content };
        chat_controller.event_sender.emit(started).await;
        None
    }

    async fn save_state(&self, turn: &Turn) {
        if let Some(chat_controller) = self.chat_controller(turn) {
            let ended = ChatEvent::TurnEnded;
            chat_controller.event_sender.emit(ended).await;
            chat_controller.send_status_later(turn);
        }
    }

    async fn on_error(&self, stage: &str, turn: Option<&Turn>) {
        if let Some(turn) = turn.filter(|_| stage == "turn") {
            self.save_state(turn).await;
        }
    }
}

/// Connects the terminal of a chat and its gateway.
pub(super) struct ChatController {
    pub(super) framework: Framework,
    pub(super) settings: Arc<Settings>,
    catalog: Option<Catalog>,
    pub(super) event_sender: ChatEventSender,
    /// Whether the chat can show questions to the user. If not, stdin is a pipe.
    can_ask: bool,
    session: Mutex<ChatSession>,
    /// Session of the last turn. A plugin may resolve a session that differs from the chat's own.
    resolved: Mutex<Option<SessionId>>,
    lines: OpenLines,
    /// Files to attach to the next message.
    attached: Mutex<Vec<MediaItem>>,
    /// The latest images from the clipboard, by the marker that attaches them.
    clipboard_images: Mutex<VecDeque<(String, MediaItem)>>,
    /// Model and reasoning effort from the command line, until a command selects others.
    model: Mutex<ModelArgs>,
    /// Cancels the line that is being submitted.
    submitting: Mutex<Option<CancellationToken>>,
    /// Held while a line is being submitted.
    submission: tokio::sync::Mutex<()>,
    /// Whether the user is leaving. All lines are then cancelled, also those that wait to be submitted.
    is_leaving: AtomicBool,
    terminal: TerminalApprover,
    handler: OnceLock<MessageHandler>,
    pub(super) gateway: OnceLock<GatewayHandle>,
    /// Report of the last turn that failed.
    failure: Mutex<Option<TurnReport>>,
    /// Number of the next line that is recovered from an earlier chat.
    next_recovered_line: AtomicU64,
    usage: Mutex<ChatUsage>,
    /// Session of the last status report.
    reported_session: tokio::sync::Mutex<String>,
    weak_self: Weak<Self>,
}

/// Usage of the model calls of this chat: the last model, its last token count, and the total cost in US dollars.
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
        can_ask: bool,
        session: ChatSession,
    ) -> Arc<Self> {
        Arc::new_cyclic(|weak_self| Self {
            framework: framework.clone(),
            settings: Arc::clone(settings),
            catalog: Catalog::new(settings).ok(),
            event_sender,
            can_ask,
            session: Mutex::new(session),
            resolved: Mutex::default(),
            lines: OpenLines::default(),
            attached: Mutex::default(),
            clipboard_images: Mutex::default(),
            model: Mutex::default(),
            submitting: Mutex::default(),
            submission: tokio::sync::Mutex::default(),
            is_leaving: AtomicBool::default(),
            terminal: TerminalApprover::default(),
            handler: OnceLock::new(),
            gateway: OnceLock::new(),
            failure: Mutex::new(None),
            next_recovered_line: AtomicU64::new(FIRST_RECOVERED_LINE),
            usage: Mutex::default(),
            reported_session: tokio::sync::Mutex::default(),
            weak_self: weak_self.clone(),
        })
    }

    /// Returns the channel of the chat. Lines of the chat go to `handler`.
    pub(super) fn channel(&self, handler: &MessageHandler) -> Arc<dyn Channel> {
        let _ = self.handler.set(Arc::clone(handler));
        let controller = self.weak_self.clone();
        let adopt = move |message: &mut Inbound| {
            if let Some(chat_controller) = controller.upgrade() {
                chat_controller.adopt_line(message);
            }
        };
        let controller = self.weak_self.clone();
        let ask: AskApproval = Box::new(move |request| {
            let chat_controller = controller.upgrade();
            Box::pin(async move {
                let chat_controller =
                    chat_controller.ok_or_else(|| Error::unknown("the chat has ended"))?;
                if chat_controller.can_ask {
                    let workspace = chat_controller.framework.workspace();
                    let asking = chat_controller
                        .event_sender
                        .ask_approval(request, workspace);
                    Ok(asking.await)
                } else {
                    // Stdin is not a terminal, but the process may still have one.
                    chat_controller.terminal.ask(request, None).await
                }
            })
        });
        let sender = self.event_sender.clone();
        Arc::new(CliChannel::new(sender, Box::new(adopt), ask))
    }

    /// Returns the id of the current session.
    pub(super) fn session(&self) -> String {
        self.session.lock().id.clone()
    }

    /// Returns the session in which turns of this chat run.
    fn resolved_session(&self) -> SessionId {
        let resolved = self.resolved.lock().clone();
        resolved.unwrap_or_else(|| SessionId::from(self.session()))
    }

    /// Returns the name of the journal, which is unique per chat and workspace.
    pub(super) fn journal(&self) -> String {
        let session = self.session.lock();
        let tape = TapeName::for_session(self.framework.workspace_text(), session.base_id());
        let halves = tape.as_str().split("__");
        let name: String = halves.flat_map(|half| half.chars().take(8)).collect();
        format!("chat-{name}")
    }

    /// Switches to a new chat with a new session.
    pub(super) fn start_new_chat(&self) {
        let mut session = self.session.lock();
        *session = session.with_new_chat();
    }

    /// Returns the status line of the current session.
    pub(super) async fn status(&self) -> StatusLine {
        let session = self.resolved_session();
        let workspace = self.framework.workspace_text();
        let tape = TapeName::for_session(workspace, &session);
        let summary = match self.framework.tape_store() {
            Some(store) => store.summary(&tape).await.unwrap_or_default(),
            None => TapeSummary::default(),
        };
        let chat_usage = self.usage.lock().clone();
        let given = self.model.lock().clone();
        let model = given.model.or(summary.model).or(chat_usage.model);
        let model = model.or_else(|| self.settings.get(ModelSettings::MODEL));
        let last_tokens = summary
            .usage
            .and_then(|usage| usage.total_tokens.try_into().ok());
        let model = model.unwrap_or_default();
        let last_tokens = chat_usage.tokens.or(last_tokens);
        let window = model.parse::<ModelId>().ok().and_then(|model| {
            let provider = self.catalog.as_ref()?.get(model.provider())?;
            provider.context_window(model.model())
        });
        let used = last_tokens.unwrap_or(0);
        StatusLine {
            session: session.into(),
            effort: given.reasoning_effort.or(summary.reasoning_effort),
            entries: summary.entries,
            last_tokens,
            context_left: window.map(|window| context_left(used, window)),
            cost: chat_usage.cost,
            model,
        }
    }

    /// Returns the last exchange of the current session, if it has one.
    pub(super) async fn last_exchange(&self) -> Option<LastExchange> {
        let session = self.resolved_session();
        session::last_exchange(&self.framework, &session).await
    }

    /// Returns the exit code of a chat through a pipe.
    pub(super) fn exit_code(&self) -> Result<ExitCode> {
        exit::exit_code(self.failure.lock().as_ref())
    }

    /// Stores the model and the token count of a model call, and adds its cost to the total.
    fn add_usage(&self, model: &str, result: &LlmResult) {
        let mut usage = self.usage.lock();
        usage.model = Some(model.to_owned());
        let Some(tokens) = result.usage.as_ref().and_then(TokenCounts::from_usage) else {
            return;
        };
        usage.tokens = Some(tokens.total());
        let price = |model: &str| self.catalog.as_ref()?.price(&model.parse().ok()?);
        if let Some(price) = price(model) {
            *usage.cost.get_or_insert(0.0) += tokens.cost(price);
        }
    }

    /// Attaches files to the next message.
    pub(super) fn attach_to_next(&self, files: Vec<MediaItem>) {
        self.attached.lock().extend(files);
    }

    /// Sets the model and the reasoning effort of the turns of this chat.
    pub(super) fn set_model(&self, model: ModelArgs) {
        *self.model.lock() = model;
    }

    async fn notify(&self, text: String) {
        self.event_sender.emit(ChatEvent::Notice(text)).await;
    }

    async fn build_message(&self, text: String) -> Result<Inbound> {
        let session = self.session.lock().clone();
        let mut files = Vec::new();
        if let Some(command) = command_line(&text) {
            self.model.lock().yield_to_command(command);
        } else {
            let mentions = Mentions::read(&self.framework, &text)?;
            for notice in mentions.notices {
                self.notify(notice).await;
            }
            files = mentions.files;
            files.append(&mut self.attached.lock());
            let images = self.clipboard_images.lock();
            let images = images.iter().filter(|(marker, _)| text.contains(marker));
            files.extend(images.map(|(_, image)| image.clone()));
        }
        let mut message = ChannelMessage::new(&session.id, CHANNEL_NAME, text)
            .chat_id(&session.chat_id)
            .context("thread_id", session.id.clone())
            .active();
        message = self.model.lock().apply(message);
        for file in files {
            message = message.media(file);
        }
        let mut message = Inbound::from(message).with_sender(Sender::terminal());
        if session.is_selected() {
            message.set_session_id(SessionId::from(session.id));
        }
        Ok(message)
    }

    /// Switches to the session that `,new` or `,resume` selected.
    async fn follow_session_switch(&self) -> Result<()> {
        let mut session = self.session.lock().clone();
        session.follow_switch(&self.framework).await?;
        self.set_session(session);
        Ok(())
    }

    fn set_session(&self, session: ChatSession) {
        let id = session.id.clone();
        let before = std::mem::replace(&mut *self.session.lock(), session);
        if id != before.id {
            *self.resolved.lock() = None;
            // The cost is counted per chat, not per session.
            let mut usage = self.usage.lock();
            (usage.model, usage.tokens) = (None, None);
        }
    }

    /// Reports the status of the current session to the terminal, and the list of sessions if the session changed.
    pub(super) async fn send_status(&self) {
        // Send one report at a time, so that the last report is the current one.
        let mut reported = self.reported_session.lock().await;
        if let Err(error) = self.follow_session_switch().await {
            tracing::warn!(%error, "chat.session_unknown");
        }
        let status = self.status().await;
        let is_new = std::mem::replace(&mut *reported, status.session.clone()) != status.session;
        self.event_sender.emit(ChatEvent::Status(status)).await;
        if is_new && let Ok(mut sessions) = session::terminal_sessions(&self.framework).await {
            let chat = session::base_session_id(&reported);
            // The current session may have no tape yet.
            sessions.retain(|id| session::base_session_id(id) == chat && *id != *reported);
            sessions.insert(0, reported.clone());
            self.event_sender.emit(ChatEvent::Sessions(sessions)).await;
        }
    }

    /// Reports the status after a turn that belongs to no line of this chat, as soon as the turn is on its tape.
    fn send_status_later(&self, turn: &Turn) {
        if self.lines.line_number(turn.inbound()).is_some() {
            return;
        }
        let chat_controller = self.weak_self.clone();
        drop(tokio::spawn(async move {
            let Some(chat_controller) = chat_controller.upgrade() else {
                return;
            };
            let session = chat_controller.session.lock().clone();
            if let Some(store) = chat_controller.framework.tape_store() {
                let tape = Tape::new(store, session.tape_name(&chat_controller.framework));
                drop(tape.lease(LeaseWait::For(TURN_END_TIMEOUT)).await);
            }
            chat_controller.send_status().await;
        }));
    }

    /// Shows an unfinished line that an earlier chat submitted in this session, and watches its outcome. The line then
    /// counts as a line of this chat.
    fn adopt_line(&self, message: &mut Inbound) {
        if message.message.session_id().as_deref() != Some(self.session().as_str()) {
            return;
        }
        let line = self.next_recovered_line.fetch_add(1, Ordering::Relaxed);
        let receipt = self.lines.register(line, message);
        let content = message.message.content().into_owned();
        let recovered = ChatEvent::LineRecovered { line, content };
        self.event_sender.emit_detached(recovered);
        self.watch_receipt(line, receipt);
    }

    /// Submits a line that the user did not type, and shows it like a line of an earlier chat.
    pub(super) fn submit_recovered_line(self: &Arc<Self>, text: &str) {
        let line = self.next_recovered_line.fetch_add(1, Ordering::Relaxed);
        let (chat_controller, content) = (Arc::clone(self), text.to_owned());
        drop(tokio::spawn(async move {
            let text = content.clone();
            let recovered = ChatEvent::LineRecovered { line, content };
            chat_controller.event_sender.emit(recovered).await;
            chat_controller.submit_line(line, text).await;
        }));
    }

    /// Waits in the background for the outcome of a line and reports it.
    fn watch_receipt(&self, line: u64, receipt: Arc<InboundReceipt>) {
        let chat_controller = self.weak_self.clone();
        drop(tokio::spawn(async move {
            let outcome = receipt.outcome().await;
            if let Some(chat_controller) = chat_controller.upgrade() {
                chat_controller.handle_outcome(line, outcome).await;
            }
        }));
    }

    /// Reports the outcome of a line to the terminal.
    async fn handle_outcome(&self, line: u64, outcome: MessageOutcome) {
        let (outcome, replies) = match outcome {
            MessageOutcome::Dropped {
                reason: DropReason::Withdrawn,
            } => (LineOutcome::Withdrawn, 0),
            MessageOutcome::Dropped { reason } => {
                if !matches!(reason, DropReason::Cancelled | DropReason::SessionQuit) {
                    let text = format!("the message was not answered: {reason}");
                    self.set_failure(Error::unknown(text));
                }
                (LineOutcome::NotAnswered(reason.to_string()), 0)
            }
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
        self.settle_line(line, outcome, replies).await;
    }

    async fn settle_line(&self, line: u64, outcome: LineOutcome, replies: u32) {
        let settled = ChatEvent::LineSettled {
            line,
            outcome,
            replies,
        };
        self.event_sender.emit(settled).await;
    }

    /// Reports a line that was not accepted to the terminal.
    async fn reject_line(&self, line: u64, error: Error) {
        if error.kind() == ErrorKind::Cancelled {
            let outcome = LineOutcome::NotAnswered(DropReason::Cancelled.to_string());
            return self.settle_line(line, outcome, 0).await;
        }
        let (outcome, replies) = if error.is_reported() {
            (LineOutcome::Rejected, 1)
        } else {
            (LineOutcome::NotAnswered(error.message().to_owned()), 0)
        };
        self.set_failure(error);
        self.settle_line(line, outcome, replies).await;
    }

    fn set_failure(&self, error: Error) {
        let mut report = TurnReport::default();
        report.error = Some(error);
        *self.failure.lock() = Some(report);
    }

    /// Passes a line to the gateway. When this returns, the line is on disk.
    async fn accept_line(&self, line: u64, text: String) -> Result<()> {
        let _submission = self.submission.lock().await;
        if self.is_leaving.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Cancelled, "the line was cancelled"));
        }
        let handler = self.handler.get();
        let handler = handler.ok_or_else(|| {
            Error::unknown("cannot send the line: the chat is not running; start `bub chat` again")
        })?;
        self.follow_session_switch().await?;
        let mut message = self.build_message(text).await?;
        let receipt = self.lines.register(line, &mut message);
        // Once the line is in a lane, `cancel_turn` cancels it through the gateway. Until then, this token cancels the
        // line.
        *self.submitting.lock() = Some(message.cancel.clone());
        let accepted = handler(message).await;
        *self.submitting.lock() = None;
        accepted?;
        self.watch_receipt(line, receipt);
        Ok(())
    }

    /// Cancels the line that is being submitted, if any, and waits until the submission has ended.
    pub(super) async fn cancel_submission(&self) {
        self.cancel_submitting();
        let _submission = self.submission.lock().await;
    }

    fn cancel_submitting(&self) {
        if let Some(submitting) = &*self.submitting.lock() {
            submitting.cancel();
        }
    }

    /// Switches the session if the turn asked for it. Stores the report of a turn that failed and was not cancelled.
    fn record_report(&self, report: TurnReport) {
        // Switch even if this session is already recorded as the last switch of the chat.
        if let Some(id) = &report.session_switch {
            let mut session = self.session.lock().clone();
            session.switch_to(id);
            self.set_session(session);
        }
        let failure = exit::failure(&report);
        if failure.is_some_and(|error| error.kind() != ErrorKind::Cancelled) {
            *self.failure.lock() = Some(report);
        }
    }
}

#[async_trait]
impl ChatHost for ChatController {
    async fn submit_line(&self, line: u64, text: String) {
        match self.accept_line(line, text).await {
            Ok(()) => self.event_sender.emit(ChatEvent::LineAccepted(line)).await,
            Err(error) => self.reject_line(line, error).await,
        }
    }

    async fn read_clipboard_image(&self, number: u64) {
        match clipboard::read_image(&self.settings).await {
            Ok(image) => {
                let mut images = self.clipboard_images.lock();
                images.truncate(MAX_CLIPBOARD_IMAGES - 1);
                images.push_front((image_marker(number), image));
            }
            Err(error) => {
                let reason = error.message().to_owned();
                let event = ChatEvent::ImageRejected { number, reason };
                self.event_sender.emit(event).await;
            }
        }
    }

    async fn cancel_turn(&self) {
        self.cancel_submitting();
        if let Some(gateway) = self.gateway.get() {
            gateway.cancel_turns(&self.resolved_session());
        }
    }

    fn withdraw_line(&self) {
        if let Some(gateway) = self.gateway.get() {
            gateway.withdraw_last(&self.resolved_session());
        }
    }

    fn report_failure(&self, error: Error) {
        self.set_failure(error);
    }

    async fn cancel_all(&self) {
        self.is_leaving.store(true, Ordering::SeqCst);
        self.cancel_submission().await;
        if let Some(router) = self.framework.router() {
            let session = self.resolved_session();
            let _ = router.quit_session(&session, None).await;
        }
    }
}
