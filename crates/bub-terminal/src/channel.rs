//! The channel `cli`: what turns say reaches the chat, and lines that are typed meanwhile steer them.

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicU64, Ordering},
};

use bub_kernel::{
    Admission, AdmissionDecision, ApprovalAnswer, ApprovalRequest, BoxFuture, CancellationToken,
    Channel, ChannelRole, ErrorKind, Inbound, InboundReceipt, MessageKind, ModelStream, Outbound,
    Result, StreamEvent, Turn, TurnSnapshot,
};
use bub_settings::Redactor;
use futures_util::StreamExt as _;
use tokio::sync::{mpsc, oneshot};

use crate::turn_view::StatusLine;

/// The name of the channel.
pub const CHANNEL_NAME: &str = "cli";

/// So many events may wait for the chat; then turns wait, too.
const EVENT_CAPACITY: usize = 256;

/// Lines of an earlier chat are numbered from here.
pub const FIRST_RECOVERED_LINE: u64 = 1 << 63;

/// Which lines of the chat messages are, by their receipts. A handle: clones share the lines.
///
/// A line is known for as long as its receipt is used.
#[derive(Debug, Clone, Default)]
pub struct OpenLines(Arc<Mutex<Vec<OpenLine>>>);

#[derive(Debug)]
struct OpenLine {
    number: u64,
    receipt: Weak<InboundReceipt>,
}

impl OpenLines {
    /// Makes a message a line of the chat. Returns the receipt that the message has from now on.
    pub fn open(&self, number: u64, message: &mut Inbound) -> Arc<InboundReceipt> {
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

    /// The line that a message is; `None` if it is not a line of this chat.
    pub fn line(&self, message: &Inbound) -> Option<u64> {
        let is_same = |line: &&OpenLine| {
            let Some(receipt) = line.receipt.upgrade() else {
                return false;
            };
            let has_receipt = message
                .receipt
                .as_ref()
                .is_some_and(|own| Arc::ptr_eq(own, &receipt));
            let id = receipt.message_id();
            has_receipt || id.is_some_and(|id| message.message_id() == Some(id))
        };
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().find(is_same).map(|line| line.number)
    }
}

/// Something for the chat to show.
#[derive(Debug)]
pub enum ChatEvent {
    /// A line of an earlier chat waits.
    Found {
        /// Its number here.
        line: u64,
        /// What it says.
        content: String,
    },
    /// A line is on disk: it is going to be answered.
    Taken(u64),
    /// A turn begins to answer.
    Began {
        /// The line it answers; none when that is of an earlier chat, and of another session.
        line: Option<u64>,
        /// What the line says.
        content: String,
    },
    /// The turn goes on.
    Event(StreamEvent),
    /// It says no more.
    Ended,
    /// A line is done with, in one way or another.
    Settled {
        /// The line.
        line: u64,
        /// The outcome.
        outcome: LineOutcome,
        /// How many replies there are; each is said, before this or after.
        replies: u32,
    },
    /// A message came for this chat.
    Said {
        /// What it says.
        content: String,
        /// The kind of the message.
        kind: MessageKind,
        /// Whether the events of its turn said it already.
        is_known: bool,
    },
    /// Somebody has to say whether a call may be made.
    Asked(UserQuestion),
    /// Nobody waits for that answer any more.
    Withdrawn(String),
    /// The session is another one, or has changed.
    Status(StatusLine),
    /// The sessions of the chat, the latest first.
    Sessions(Vec<String>),
    /// Something to remark.
    Remark(String),
}

/// The outcome of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineOutcome {
    /// Its turn ended, or it steered another one.
    Answered,
    /// The user withdrew it while it was queued.
    Withdrawn,
    /// It could not be accepted, and a reply says why.
    Rejected,
    /// It is not answered, for a reason that no reply says.
    NotAnswered(String),
}

/// Something that waits for the person at the terminal, with where the answer goes.
#[derive(Debug)]
pub enum UserQuestion {
    /// Whether a call may be made.
    Call(Box<ApprovalRequest>, oneshot::Sender<ApprovalAnswer>),
    /// A question of a plugin: its id, its text and where the answer goes. There is room for the one answer.
    Line(String, String, std::sync::mpsc::SyncSender<String>),
}

impl UserQuestion {
    /// What is asked, in full: nobody can approve what was cut away.
    pub fn text(&self) -> String {
        match self {
            Self::Call(request, _) => {
                let arguments: Vec<_> = request
                    .arguments
                    .iter()
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect();
                let reason = crate::sanitize::line(&request.reason);
                format!(
                    "{reason}\nallow {}({})?",
                    request.tool,
                    arguments.join(", ")
                )
            }
            Self::Line(_, text, _) => crate::sanitize::line(text),
        }
    }

    /// What it is known by.
    pub fn id(&self) -> &str {
        match self {
            Self::Call(request, _) => &request.id,
            Self::Line(id, ..) => id,
        }
    }
}

/// Tells the chat.
#[derive(Debug, Clone)]
pub struct ChatEventSender(mpsc::Sender<ChatEvent>);

impl ChatEventSender {
    /// A teller, and what it tells.
    pub fn new() -> (Self, mpsc::Receiver<ChatEvent>) {
        let (sender, chat_events) = mpsc::channel(EVENT_CAPACITY);
        (Self(sender), chat_events)
    }

    /// Tells, and waits until there is room for it.
    pub async fn emit(&self, chat_event: ChatEvent) {
        // Nobody is there to be told once the chat has ended.
        let _ = self.0.send(chat_event).await;
    }

    /// Tells from where nothing can be waited for.
    pub fn emit_detached(&self, chat_event: ChatEvent) {
        if let Err(mpsc::error::TrySendError::Full(chat_event)) = self.0.try_send(chat_event)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let event_sender = self.clone();
            drop(runtime.spawn(async move { event_sender.emit(chat_event).await }));
        }
    }

    /// Asks the person. When whoever asks goes away, so does the question.
    pub async fn ask(&self, request: &ApprovalRequest) -> ApprovalAnswer {
        let (answer, answered) = oneshot::channel();
        let _withdraw = WithdrawGuard {
            event_sender: self,
            id: request.id.clone(),
        };
        self.emit(ChatEvent::Asked(UserQuestion::Call(
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
    /// Asks the person for a line, on a thread that may wait; nothing when the chat ends before.
    pub fn ask_line(&self, text: &str) -> Option<String> {
        static NEXT_QUESTION_ID: AtomicU64 = AtomicU64::new(0);
        let id = format!("line {}", NEXT_QUESTION_ID.fetch_add(1, Ordering::Relaxed));
        let (answer, answered) = std::sync::mpsc::sync_channel(1);
        let _withdraw = WithdrawGuard {
            event_sender: self,
            id: id.clone(),
        };
        self.emit_detached(ChatEvent::Asked(UserQuestion::Line(
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
            .emit_detached(ChatEvent::Withdrawn(std::mem::take(&mut self.id)));
    }
}

/// Takes up a message of an earlier chat.
pub type RestoreFn = Box<dyn Fn(&mut Inbound) + Send + Sync>;

/// Asks the user about a tool call.
pub type AskApproval =
    Box<dyn for<'a> Fn(&'a ApprovalRequest) -> BoxFuture<'a, Result<ApprovalAnswer>> + Send + Sync>;

/// The channel.
pub struct CliChannel {
    event_sender: ChatEventSender,
    redactor: Redactor,
    take_up: RestoreFn,
    ask: AskApproval,
    /// What turns have said that their replies need not repeat.
    streamed: Arc<Mutex<Vec<String>>>,
}

/// So many answers are remembered.
const MAX_STREAMED_ANSWERS: usize = 8;

impl CliChannel {
    /// A channel that tells a chat. Replies come without the secrets that are registered there.
    pub fn new(
        event_sender: ChatEventSender,
        redactor: Redactor,
        take_up: RestoreFn,
        ask: AskApproval,
    ) -> Self {
        Self {
            event_sender,
            redactor,
            take_up,
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
    /// An error without what the person at the terminal knows: that it was this turn, and what its command printed.
    fn shorten_error(&self, content: &str) -> String {
        let text = content
            .strip_prefix("An error occurred at stage 'turn': ")
            .unwrap_or(content);
        let plain = text
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("] "));
        let text = plain
            .filter(|(kind, _)| ErrorKind::from_name(kind).name() == *kind)
            .map_or(text, |(_, text)| text);
        let wrong = text
            .strip_prefix("Tool '")
            .and_then(|rest| rest.split_once("' argument validation failed. "));
        if let Some((name, cause)) = wrong {
            return format!(",{name}: {cause}");
        }
        let streamed = self.streamed.lock().unwrap_or_else(PoisonError::into_inner);
        let about = |printed: &String| {
            let printed = Some(printed.trim_end()).filter(|printed| !printed.is_empty())?;
            text.trim_end()
                .strip_suffix(printed)?
                .strip_suffix("\noutput:\n")
        };
        let nothing = text.strip_suffix("\noutput:\n(no output)");
        nothing
            .or_else(|| streamed.iter().find_map(about))
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

    fn restore(&self, message: &mut Inbound) {
        (self.take_up)(message);
    }

    // H-159: what was streamed is not said again.
    fn send<'a>(&'a self, reply: &'a Outbound) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let (content, kind) = (reply.content().into_owned(), reply.kind());
            let is_error = kind == MessageKind::Error;
            let is_known = !is_error && self.was_streamed(&content);
            let content = if is_error {
                self.shorten_error(&content)
            } else {
                content
            };
            self.event_sender
                .emit(ChatEvent::Said {
                    content,
                    kind,
                    is_known,
                })
                .await;
            Ok(())
        })
    }

    fn stream_events(self: Arc<Self>, _turn: Turn, stream: ModelStream) -> ModelStream {
        // The program reports the start of a turn: a command may end before there is a stream.
        let telling = StreamedTextGuard {
            cli: self,
            text: String::new(),
        };
        ModelStream::new(futures_util::stream::unfold(
            (stream, telling),
            |(mut stream, mut telling)| async {
                let event = stream.next().await?;
                if let Ok(event) = &event {
                    if let StreamEvent::Text(delta) = event {
                        telling.text.push_str(delta);
                    }
                    telling
                        .cli
                        .event_sender
                        .emit(ChatEvent::Event(event.clone()))
                        .await;
                }
                Some((event, (stream, telling)))
            },
        ))
    }

    fn request_approval<'a>(
        &'a self,
        request: &'a ApprovalRequest,
    ) -> BoxFuture<'a, Result<Option<ApprovalAnswer>>> {
        Box::pin(async move { (self.ask)(request).await.map(Some) })
    }

    // H-157, W-47: text steers the turn that runs; a command waits for its own, and what is typed after it waits behind it.
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

/// A stream that is being told of. When it is dropped, what it said is known.
struct StreamedTextGuard {
    cli: Arc<CliChannel>,
    text: String,
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
        let mut message = Inbound::from(Envelope::text("hello"));
        let other = Inbound::from(Envelope::text("hello"));
        let receipt = lines.open(7, &mut message);
        // The session of a message is named before the message has an id.
        assert_eq!(lines.line(&message), Some(7));
        assert_eq!(lines.line(&other), None);

        let id = MessageId::from("m");
        receipt.accept(&id, false);
        message.receipt = None;
        assert_eq!(lines.line(&message), None);
        message.attempt = Some(attempt(&id));
        assert_eq!(lines.line(&message), Some(7));
        let mut later = other;
        later.attempt = Some(attempt(&MessageId::from("n")));
        assert_eq!(lines.line(&later), None);

        drop(receipt);
        assert_eq!(lines.line(&message), None);
        let _receipt = lines.open(8, &mut later);
        assert_eq!(lines.line(&later), Some(8));
    }
}
