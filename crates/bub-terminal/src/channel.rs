//! The `cli` channel: sends the output of turns to the chat, and lets lines typed during a turn steer it.

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicU64, Ordering},
};

use bub_kernel::{
    Admission, AdmissionDecision, ApprovalAnswer, ApprovalRequest, BoxFuture, CancellationToken,
    Channel, ChannelRole, Error, ErrorKind, Inbound, InboundReceipt, MessageKind, ModelStream,
    Outbound, Result, StreamEvent, Turn, TurnSnapshot,
};
use bub_settings::Redactor;
use futures_util::StreamExt as _;
use tokio::sync::{mpsc, oneshot};

use crate::turn_view::StatusLine;

/// The name of the channel.
pub const CHANNEL_NAME: &str = "cli";

/// Capacity of the event queue of a chat. When it is full, turns wait.
const EVENT_CAPACITY: usize = 256;

/// Number of the first line recovered from an earlier chat. Later ones count up from it.
pub const FIRST_RECOVERED_LINE: u64 = 1 << 63;

/// Maps messages to line numbers of the chat by their receipts. Clones share the same map.
///
/// A line is known while its receipt is in use.
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
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
            let has_receipt = message
                .receipt
                .as_ref()
                .is_some_and(|other| Arc::ptr_eq(other, &receipt));
            let id = receipt.message_id();
            has_receipt || id.is_some_and(|id| message.message_id() == Some(id))
        };
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().find(is_same).map(|line| line.number)
    }
}

/// An event that a chat shows.
#[derive(Debug)]
pub enum ChatEvent {
    /// A line of an earlier chat is queued again.
    LineRecovered {
        /// Its number in this chat.
        line: u64,
        /// Its text.
        content: String,
    },
    /// A line is on disk and will be answered.
    LineAccepted(u64),
    /// A turn starts.
    TurnStarted {
        /// The line that the turn answers; `None` for a line of an earlier chat in another session.
        line: Option<u64>,
        /// The text of the line.
        content: String,
    },
    /// The running turn produced a stream event.
    Stream(StreamEvent),
    /// The turn produces no more events.
    TurnEnded,
    /// The outcome of a line is known.
    LineSettled {
        /// The line number.
        line: u64,
        /// The outcome.
        outcome: LineOutcome,
        /// Number of replies. Each is sent as a [`ChatEvent::Message`], before or after this event.
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
    /// The ids of the chat's sessions, newest first.
    Sessions(Vec<String>),
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
    /// The line is not answered, for this reason. No reply reports it.
    NotAnswered(String),
}

/// A question for the user at the terminal, with the channel for the answer.
#[derive(Debug)]
pub enum UserQuestion {
    /// Asks whether a tool call is allowed.
    Call(Box<ApprovalRequest>, oneshot::Sender<ApprovalAnswer>),
    /// A plugin's question: id, text, and a channel with capacity for one answer.
    Line(String, String, std::sync::mpsc::SyncSender<String>),
}

impl UserQuestion {
    /// Returns the complete text of the question. It is never truncated: a user must see all of what is approved.
    pub fn text(&self) -> String {
        match self {
            Self::Call(request, _) => {
                let arguments: Vec<_> = request
                    .arguments
                    .iter()
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect();
                let reason = crate::sanitize::sanitize_line(&request.reason);
                format!(
                    "{reason}\nallow {}({})?",
                    request.tool,
                    arguments.join(", ")
                )
            }
            Self::Line(_, text, _) => crate::sanitize::sanitize_line(text),
        }
    }

    /// Returns the id of the question.
    pub fn id(&self) -> &str {
        match self {
            Self::Call(request, _) => &request.id,
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

    /// Sends an event from code that cannot wait. If the queue is full, a task sends the event later.
    pub fn emit_detached(&self, chat_event: ChatEvent) {
        if let Err(mpsc::error::TrySendError::Full(chat_event)) = self.0.try_send(chat_event)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let event_sender = self.clone();
            drop(runtime.spawn(async move { event_sender.emit(chat_event).await }));
        }
    }

    /// Asks the user to approve a tool call. The question is withdrawn if the returned future is dropped.
    pub async fn ask_approval(&self, request: &ApprovalRequest) -> ApprovalAnswer {
        let (answer, answered) = oneshot::channel();
        let _withdraw = WithdrawGuard {
            event_sender: self,
            id: request.id.clone(),
        };
        self.emit(ChatEvent::Question(UserQuestion::Call(
            Box::new(request.clone()),
            answer,
        )))
        .await;
        answered
            .await
            .unwrap_or_else(|_| ApprovalAnswer::Denied(Some("no answer".to_owned())))
    }
}

impl ChatEventSender {
    /// Asks the user for a line and blocks the thread until the answer. Returns `None` if the chat ends first.
    pub fn ask_line(&self, text: &str) -> Option<String> {
        static NEXT_QUESTION_ID: AtomicU64 = AtomicU64::new(0);
        let id = format!("line {}", NEXT_QUESTION_ID.fetch_add(1, Ordering::Relaxed));
        let (answer, answered) = std::sync::mpsc::sync_channel(1);
        let _withdraw = WithdrawGuard {
            event_sender: self,
            id: id.clone(),
        };
        self.emit_detached(ChatEvent::Question(UserQuestion::Line(
            id,
            text.to_owned(),
            answer,
        )));
        answered.recv().ok()
    }
}

struct WithdrawGuard<'a> {
    event_sender: &'a ChatEventSender,
    id: String,
}

impl Drop for WithdrawGuard<'_> {
    fn drop(&mut self) {
        self.event_sender
            .emit_detached(ChatEvent::QuestionWithdrawn(std::mem::take(&mut self.id)));
    }
}

/// Restores a message of an earlier chat as a line of this one.
pub type RestoreFn = Box<dyn Fn(&mut Inbound) + Send + Sync>;

/// Asks the user to approve a tool call.
pub type AskApproval =
    Box<dyn for<'a> Fn(&'a ApprovalRequest) -> BoxFuture<'a, Result<ApprovalAnswer>> + Send + Sync>;

/// The `cli` channel of a chat.
pub struct CliChannel {
    event_sender: ChatEventSender,
    redactor: Redactor,
    restore: RestoreFn,
    ask: AskApproval,
    /// Streamed texts that replies need not repeat.
    streamed: Arc<Mutex<Vec<String>>>,
}

/// Maximum number of streamed answers kept for comparison with replies.
const MAX_STREAMED_ANSWERS: usize = 8;

impl CliChannel {
    /// Creates a channel that sends events to a chat. `redactor` removes secrets from the streamed text before it is
    /// compared with replies, because replies are redacted, too.
    pub fn new(
        event_sender: ChatEventSender,
        redactor: Redactor,
        restore: RestoreFn,
        ask: AskApproval,
    ) -> Self {
        Self {
            event_sender,
            redactor,
            restore,
            ask,
            streamed: Arc::default(),
        }
    }

    fn was_streamed(&self, content: &str) -> bool {
        let mut streamed = self.streamed.lock().unwrap_or_else(PoisonError::into_inner);
        let at = streamed
            .iter()
            .position(|text| text.trim() == content.trim());
        at.map(|at| streamed.remove(at)).is_some()
    }
}

impl CliChannel {
    /// Removes what the user at the terminal already knows from an error: the stage of the turn, and the output that
    /// the command printed.
    fn shorten_error(&self, content: &str) -> String {
        let text = content
            .strip_prefix("An error occurred at stage 'turn': ")
            .unwrap_or(content);
        let without_kind = text
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("] "));
        let text = without_kind
            .filter(|(kind, _)| ErrorKind::from_name(kind).name() == *kind)
            .map_or(text, |(_, text)| text);
        let invalid_arguments = text
            .strip_prefix("Tool '")
            .and_then(|rest| rest.split_once("' argument validation failed. "));
        if let Some((name, cause)) = invalid_arguments {
            return format!(",{name}: {cause}");
        }
        let streamed = self.streamed.lock().unwrap_or_else(PoisonError::into_inner);
        let output_of = |printed: &String| {
            let printed = Some(printed.trim_end()).filter(|printed| !printed.is_empty())?;
            text.trim_end()
                .strip_suffix(printed)?
                .strip_suffix("\noutput:\n")
        };
        let without_output = text.strip_suffix("\noutput:\n(no output)");
        without_output
            .or_else(|| streamed.iter().find_map(output_of))
            .unwrap_or(text)
            .to_owned()
    }
}

impl Channel for CliChannel {
    fn name(&self) -> &'static str {
        CHANNEL_NAME
    }

    fn start(&self, _stop: CancellationToken) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn stop(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn restore_message(&self, message: &mut Inbound) {
        (self.restore)(message);
    }

    // H-159: streamed text is not shown again.
    fn send<'a>(&'a self, reply: &'a Outbound) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let (content, kind) = (reply.content().into_owned(), reply.kind());
            let is_error = kind == MessageKind::Error;
            let is_streamed = !is_error && self.was_streamed(&content);
            let content = if is_error {
                self.shorten_error(&content)
            } else {
                content
            };
            let message = ChatEvent::Message {
                content,
                kind,
                is_streamed,
            };
            if self.event_sender.try_emit(message).await || is_streamed {
                Ok(())
            } else {
                // The next chat shows the reply.
                Err(Error::new(
                    ErrorKind::Temporary,
                    "the chat has ended; the next `bub chat` shows the reply",
                ))
            }
        })
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

    fn request_approval<'a>(
        &'a self,
        request: &'a ApprovalRequest,
    ) -> BoxFuture<'a, Result<Option<ApprovalAnswer>>> {
        Box::pin(async move { (self.ask)(request).await.map(Some) })
    }

    // H-157, W-47: text steers the running turn. A command and all lines typed after it are queued for their own turns.
    fn admit_message<'a>(
        &'a self,
        message: &'a Inbound,
        turn: &'a TurnSnapshot,
    ) -> BoxFuture<'a, Result<Option<Admission>>> {
        let steers = turn.is_running && turn.pending_count == 0 && !message.message.is_command();
        Box::pin(std::future::ready(Ok(
            steers.then(|| Admission::new(AdmissionDecision::Steer))
        )))
    }

    fn role(&self) -> ChannelRole {
        ChannelRole::Interface
    }
}

impl std::fmt::Debug for CliChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CliChannel")
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
        let event = ChatEvent::Stream(event.clone());
        self.cli.event_sender.emit(event).await;
    }

    /// Handles the end of the stream.
    fn finish(&self) {
        if !self.has_failed {
            self.turn.mark_answer_shown();
        }
    }
}

impl Drop for StreamedTextGuard {
    fn drop(&mut self) {
        let mut streamed = self
            .cli
            .streamed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        streamed.push(self.cli.redactor.redact(&self.text).into_owned());
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
