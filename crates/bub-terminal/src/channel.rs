//! The `cli` channel: sends the output of turns to the chat, and lets lines typed during a turn steer it.

use std::{
    path::Path,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use bub_kernel::{
    Admission, AdmissionDecision, ApprovalAnswer, ApprovalRequest, BoxFuture, CallProgress,
    CancellationToken, Channel, ChannelRole, Error, ErrorKind, Inbound, InboundReceipt,
    MessageKind, ModelStream, Outbound, ReplyOrigin, Result, StreamEvent, Turn, TurnSnapshot,
    async_trait, command_prefix,
};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::{
    Line, Style, approval_lines,
    replaced_file::read_replaced_file,
    sanitize::sanitize_line,
    turn_view::{StatusLine, call_arguments, call_name},
};

/// The name of the channel.
pub const CHANNEL_NAME: &str = "cli";

/// Capacity of the event queue of a chat. When it is full, turns wait.
const EVENT_CAPACITY: usize = 256;

/// Number of the first line recovered from an earlier chat. The numbers of further recovered lines follow it.
pub const FIRST_RECOVERED_LINE: u64 = 1 << 63;

/// Maps inbound messages to line numbers of the chat. Clones share one map.
///
/// A message is found by its receipt, or by the message id in the receipt. A line is removed from the map when its
/// receipt is no longer in use.
#[derive(Debug, Clone, Default)]
pub struct OpenLines(Arc<Mutex<Vec<OpenLine>>>);

#[derive(Debug)]
struct OpenLine {
    number: u64,
    receipt: Weak<InboundReceipt>,
}

impl OpenLines {
    /// Registers a message as a line of the chat. Returns the receipt of the message, which is created if missing.
    pub fn register(&self, number: u64, message: &mut Inbound) -> Arc<InboundReceipt> {
        let receipt = message
            .receipt
            .get_or_insert_with(|| Arc::new(InboundReceipt::new(None)));
        let mut lines = self.0.lock();
        lines.retain(|line| line.receipt.strong_count() > 0);
        lines.push(OpenLine {
            number,
            receipt: Arc::downgrade(receipt),
        });
        Arc::clone(receipt)
    }

    /// Returns the line number of a message, or `None` if the message is not a line of this chat.
    pub fn line_number(&self, message: &Inbound) -> Option<u64> {
        let is_same = |line: &&OpenLine| {
            let Some(receipt) = line.receipt.upgrade() else {
                return false;
            };
            let other = message.receipt.as_ref();
            let has_receipt = other.is_some_and(|other| Arc::ptr_eq(other, &receipt));
            let id = receipt.message_id();
            has_receipt || id.is_some_and(|id| message.message_id() == Some(id))
        };
        let lines = self.0.lock();
        lines.iter().find(is_same).map(|line| line.number)
    }
}

/// An event that a chat shows.
#[derive(Debug)]
pub enum ChatEvent {
    /// A line of an earlier chat is queued again.
    LineRecovered {
        /// The number that the recovered input line gets in this chat.
        line: u64,
        /// The text of the line.
        content: String,
    },
    /// The line with this number is on disk and will be answered.
    LineAccepted(u64),
    /// A turn starts.
    TurnStarted {
        /// Number of the line that the turn answers. `None` if an earlier chat submitted the line in another session.
        line: Option<u64>,
        /// The text of the line.
        content: String,
    },
    /// The texts of the files that the calls of the next event [`StreamEvent::ToolCall`] replace, by the index of the
    /// call.
    ReplacedFiles(Vec<Option<String>>),
    /// The running turn produced a stream event.
    Stream(StreamEvent),
    /// No model is configured, and the running turn produced a part of the setup guide.
    SetupGuide(String),
    /// The running turn is interrupted, and its tool calls are recorded as this.
    CallsInterrupted(Vec<CallProgress>),
    /// The running turn produces no more stream events. Can be sent twice for one turn.
    TurnEnded,
    /// The outcome of a line is known.
    LineSettled {
        /// The number of the line.
        line: u64,
        /// The outcome of the line.
        outcome: LineOutcome,
        /// Number of replies to the line. Each is sent as a [`ChatEvent::Message`], before or after this event.
        replies: u32,
    },
    /// An outbound message for this chat.
    Message {
        /// The text of the message.
        content: String,
        /// The kind of the message.
        kind: MessageKind,
        /// Whether the stream events of the turn already contained the text.
        is_streamed: bool,
    },
    /// A question that the user has to answer.
    Question(UserQuestion),
    /// The question with this id no longer needs an answer.
    QuestionWithdrawn(String),
    /// The status of the session, or the session itself, changed.
    Status(StatusLine),
    /// The ids of the chat's sessions: the current session, then the others, newest first.
    Sessions(Vec<String>),
    /// The image with this number could not be read from the clipboard.
    ImageRejected {
        /// The number of the image.
        number: u64,
        /// The reason.
        reason: String,
    },
    /// A short notice to show.
    Notice(String),
}

/// The outcome of a line that the user typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineOutcome {
    /// The line's turn ended, or the line steered another turn.
    Answered,
    /// The user withdrew the line while it was queued.
    Withdrawn,
    /// The line was not accepted, and a reply gives the reason.
    Rejected,
    /// The line is not answered, for this reason. No reply contains the reason.
    NotAnswered(String),
}

/// A question for the user at the terminal. Its `oneshot::Sender` or `SyncSender` returns the answer.
#[derive(Debug)]
pub enum UserQuestion {
    /// Asks whether a tool call is allowed.
    Call {
        /// The call.
        request: Box<ApprovalRequest>,
        /// The text of the file that the call replaces.
        replaced: Option<String>,
        /// Returns the answer.
        answer: oneshot::Sender<ApprovalAnswer>,
    },
    /// A plugin's question: id, text, and the sender of an `mpsc` channel with capacity for one answer.
    Line(String, String, std::sync::mpsc::SyncSender<String>),
}

impl UserQuestion {
    /// Returns the lines of the question for a window of `width` columns. They are never truncated: a user must see all
    /// of what is approved.
    pub fn lines(&self, width: usize) -> Vec<Line> {
        match self {
            Self::Call {
                request, replaced, ..
            } => approval_lines(request, replaced.as_deref(), width),
            Self::Line(_, text, _) => vec![Line::new(sanitize_line(text), Style::YELLOW)],
        }
    }

    /// Returns the prompt for the answer.
    pub fn prompt(&self) -> String {
        match self {
            Self::Call { request, .. } => format!("allow? [{}] ", request.choices()),
            Self::Line(..) => "answer: ".to_owned(),
        }
    }

    /// Returns the id of the question.
    pub fn id(&self) -> &str {
        match self {
            Self::Call { request, .. } => &request.id,
            Self::Line(id, ..) => id,
        }
    }
}

/// Sends events to a chat.
#[derive(Debug, Clone)]
pub struct ChatEventSender(mpsc::Sender<ChatEvent>);

impl ChatEventSender {
    /// Creates a sender and the receiver of its events.
    pub fn new() -> (Self, mpsc::Receiver<ChatEvent>) {
        let (sender, chat_events) = mpsc::channel(EVENT_CAPACITY);
        (Self(sender), chat_events)
    }

    /// Sends an event. Waits while the queue is full. Ignores events after the end of the chat.
    pub async fn emit(&self, chat_event: ChatEvent) {
        let _ = self.try_emit(chat_event).await;
    }

    /// Sends an event. Waits while the queue is full. Returns `false` if the chat has ended.
    async fn try_emit(&self, chat_event: ChatEvent) -> bool {
        self.0.send(chat_event).await.is_ok()
    }

    /// Sends an event from code that cannot wait. If the queue is full, a task sends the event later; outside of a
    /// tokio runtime, the event is then dropped.
    pub fn emit_detached(&self, chat_event: ChatEvent) {
        if let Err(mpsc::error::TrySendError::Full(chat_event)) = self.0.try_send(chat_event)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let event_sender = self.clone();
            drop(runtime.spawn(async move { event_sender.emit(chat_event).await }));
        }
    }

    /// Asks the user to approve a tool call, whose paths are relative to `workspace`. The question is withdrawn if the
    /// returned future is dropped. If the chat ends without an answer, the future stays pending: the user has not denied
    /// the call, and the end of the chat stops the turn.
    pub async fn ask_approval(
        &self,
        request: &ApprovalRequest,
        workspace: &Path,
    ) -> ApprovalAnswer {
        let replaced = read_replaced_file(workspace, &request.tool, &request.arguments).await;
        let (answer, answered) = oneshot::channel();
        let _withdraw = self.withdraw_on_drop(request.id.clone());
        let question = UserQuestion::Call {
            request: Box::new(request.clone()),
            replaced,
            answer,
        };
        self.emit(ChatEvent::Question(question)).await;
        match answered.await {
            Ok(answer) => answer,
            Err(_) => std::future::pending().await,
        }
    }

    /// Returns a guard that withdraws a question when it is dropped.
    fn withdraw_on_drop(&self, id: String) -> impl Drop {
        scopeguard::guard(id, |id| {
            self.emit_detached(ChatEvent::QuestionWithdrawn(id));
        })
    }

    /// Asks the user for a line and blocks the thread until the answer. Returns `None` if the chat ends first.
    pub fn ask_line(&self, text: &str) -> Option<String> {
        static NEXT_QUESTION_ID: AtomicU64 = AtomicU64::new(0);
        let id = format!("line {}", NEXT_QUESTION_ID.fetch_add(1, Ordering::Relaxed));
        let (answer, answered) = std::sync::mpsc::sync_channel(1);
        let _withdraw = self.withdraw_on_drop(id.clone());
        let question = UserQuestion::Line(id, text.to_owned(), answer);
        self.emit_detached(ChatEvent::Question(question));
        answered.recv().ok()
    }
}

/// A function that restores a message of an earlier chat as a line of the current chat.
pub type RestoreFn = Box<dyn Fn(&mut Inbound) + Send + Sync>;

/// A function that asks the user to approve a tool call.
pub type AskApproval =
    Box<dyn for<'a> Fn(&'a ApprovalRequest) -> BoxFuture<'a, Result<ApprovalAnswer>> + Send + Sync>;

/// The `cli` channel of a chat.
pub struct CliChannel {
    event_sender: ChatEventSender,
    restore: RestoreFn,
    ask: AskApproval,
    /// Texts that the chat has shown while they streamed. A reply with the same text is not shown again.
    streamed: Mutex<Vec<String>>,
}

/// Maximum number of streamed answers kept for comparison with replies.
const MAX_STREAMED_ANSWERS: usize = 8;

impl CliChannel {
    /// Creates a channel that sends events to a chat.
    pub fn new(event_sender: ChatEventSender, restore: RestoreFn, ask: AskApproval) -> Self {
        Self {
            event_sender,
            restore,
            ask,
            streamed: Mutex::default(),
        }
    }

    fn was_streamed(&self, content: &str) -> bool {
        let mut streamed = self.streamed.lock();
        let mut texts = streamed.iter();
        let at = texts.position(|text| text.trim() == content.trim());
        at.map(|at| streamed.remove(at)).is_some()
    }

    /// Removes what the user at the terminal does not need from an error: the stage of the turn, the kind of the error,
    /// and the output that the command printed.
    ///
    /// It reads the text, because a reply of an earlier chat has nothing else: the journal keeps the text of an error.
    pub fn shorten_error(&self, content: &str) -> String {
        let stage = "An error occurred at stage 'turn': ";
        let text = content.strip_prefix(stage).unwrap_or(content);
        let kind = text
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("] "));
        let text = match kind {
            Some((kind, rest)) if ErrorKind::from_name(kind).name() == kind => rest,
            _ => text,
        };
        if let Some(rest) = text.strip_prefix("Tool '")
            && let Some((name, cause)) = rest.split_once("' argument validation failed. ")
        {
            return format!("{}{name}: {cause}", command_prefix());
        }
        let streamed = self.streamed.lock();
        let output_of = |printed: &String| {
            let printed = Some(printed.trim_end()).filter(|printed| !printed.is_empty())?;
            let before = text.trim_end().strip_suffix(printed)?;
            before.strip_suffix("\noutput:\n")
        };
        let without_output = text.strip_suffix("\noutput:\n(no output)");
        let without_output = without_output.or_else(|| streamed.iter().find_map(output_of));
        without_output.unwrap_or(text).to_owned()
    }
}

#[async_trait]
impl Channel for CliChannel {
    fn name(&self) -> &'static str {
        CHANNEL_NAME
    }

    async fn start(&self, _stop: CancellationToken) -> Result<()> {
        Ok(())
    }

    fn restore_message(&self, message: &mut Inbound) {
        (self.restore)(message);
    }

    // Text that was streamed is not shown again (H-159 in `docs/spec`).
    async fn send(&self, reply: &Outbound) -> Result<()> {
        let (content, kind) = (reply.content().into_owned(), reply.kind());
        if reply.origin == ReplyOrigin::Notice && kind != MessageKind::Error {
            self.event_sender.try_emit(ChatEvent::Notice(content)).await;
            return Ok(());
        }
        let is_streamed = kind != MessageKind::Error && self.was_streamed(&content);
        let content = match kind {
            MessageKind::Error => self.shorten_error(&content),
            _ => content,
        };
        let message = ChatEvent::Message {
            content,
            kind,
            is_streamed,
        };
        if self.event_sender.try_emit(message).await || is_streamed {
            return Ok(());
        }
        // The next chat shows the reply.
        let text = "the chat has ended; the next `bub chat` shows the reply";
        Err(Error::new(ErrorKind::Temporary, text))
    }

    fn stream_events(self: Arc<Self>, turn: Turn, stream: ModelStream) -> ModelStream {
        // The host reports the start of a turn, because a command can end before a stream exists.
        let guard = StreamedTextGuard {
            cli: self,
            turn,
            text: String::new(),
            has_failed: false,
        };
        ModelStream::new(futures_util::stream::unfold(
            (stream, guard),
            |(mut stream, mut guard)| async {
                let Some(event) = stream.next().await else {
                    guard.finish();
                    return None;
                };
                match &event {
                    Ok(event) => guard.show(event).await,
                    Err(_) => guard.has_failed = true,
                }
                Some((event, (stream, guard)))
            },
        ))
    }

    async fn request_approval(&self, request: &ApprovalRequest) -> Result<Option<ApprovalAnswer>> {
        (self.ask)(request).await.map(Some)
    }

    // Text steers the running turn. A command and all lines typed after it are queued for their own turns (H-157 and
    // W-47 in `docs/spec`).
    async fn admit_message(
        &self,
        message: &Inbound,
        turn: &TurnSnapshot,
    ) -> Result<Option<Admission>> {
        let steers = turn.is_running && turn.pending_count == 0 && !message.message.is_command();
        Ok(steers.then(|| Admission::new(AdmissionDecision::Steer)))
    }

    fn role(&self) -> ChannelRole {
        ChannelRole::Interface
    }
}

/// Collects the text of a stream and records it as streamed when dropped.
struct StreamedTextGuard {
    cli: Arc<CliChannel>,
    turn: Turn,
    text: String,
    has_failed: bool,
}

impl StreamedTextGuard {
    async fn show(&mut self, event: &StreamEvent) {
        if let StreamEvent::Text(delta) = event {
            self.text.push_str(delta);
        }
        if let StreamEvent::ToolCall(calls) = event {
            self.report_replaced_files(calls).await;
        }
        let event = match event {
            StreamEvent::Text(text) if self.turn.report().has_no_model => {
                ChatEvent::SetupGuide(text.clone())
            }
            event => ChatEvent::Stream(event.clone()),
        };
        self.cli.event_sender.emit(event).await;
    }

    /// Reports the files that the calls replace. The calls run when the reader of the stream asks for the next event, so
    /// the files are still as they were.
    async fn report_replaced_files(&self, calls: &[Value]) {
        let mut replaced = Vec::new();
        for call in calls {
            let (tool, arguments) = (call_name(call), call_arguments(call).1);
            let workspace = self.turn.framework().workspace();
            replaced.push(match &arguments {
                Some(arguments) => read_replaced_file(workspace, &tool, arguments).await,
                None => None,
            });
        }
        if replaced.iter().any(Option::is_some) {
            let event = ChatEvent::ReplacedFiles(replaced);
            self.cli.event_sender.emit(event).await;
        }
    }

    /// Records that the answer was shown, unless the stream failed.
    fn finish(&self) {
        if !self.has_failed {
            self.turn.mark_answer_shown();
        }
    }
}

impl Drop for StreamedTextGuard {
    fn drop(&mut self) {
        let progress = self.turn.tape().call_progress();
        if !progress.is_empty() {
            let event = ChatEvent::CallsInterrupted(progress);
            self.cli.event_sender.emit_detached(event);
        }
        let mut streamed = self.cli.streamed.lock();
        streamed.push(std::mem::take(&mut self.text));
        if streamed.len() > MAX_STREAMED_ANSWERS {
            streamed.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use bub_kernel::{Envelope, InboundAttempt, MessageId};

    use super::*;

    fn attempt(message_id: &MessageId) -> InboundAttempt {
        InboundAttempt {
            message_id: message_id.clone(),
            number: 1,
            is_durable: true,
        }
    }

    #[test]
    fn a_message_is_a_line_by_its_receipt_or_its_id_while_the_receipt_is_used() {
        let lines = OpenLines::default();
        let mut message = Inbound::from(Envelope::from_text("hello"));
        let other = Inbound::from(Envelope::from_text("hello"));
        let receipt = lines.register(7, &mut message);
        // A message's session is resolved before the message has an id.
        assert_eq!(lines.line_number(&message), Some(7));
        assert_eq!(lines.line_number(&other), None);

        let id = MessageId::from("m");
        receipt.accept(&id, false);
        message.receipt = None;
        assert_eq!(lines.line_number(&message), None);
        message.attempt = Some(attempt(&id));
        assert_eq!(lines.line_number(&message), Some(7));
        let mut later = other;
        later.attempt = Some(attempt(&MessageId::from("n")));
        assert_eq!(lines.line_number(&later), None);

        drop(receipt);
        assert_eq!(lines.line_number(&message), None);
        let _receipt = lines.register(8, &mut later);
        assert_eq!(lines.line_number(&later), Some(8));
    }
}
