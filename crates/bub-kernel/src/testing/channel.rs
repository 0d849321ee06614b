//! A channel without a platform.

use std::{
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    Admission, Channel, ChannelMessage, ChannelRole, Error, Inbound, InboundReceipt,
    MessageHandler, MessageId, Outbound, Result, Role, Sender, StreamEvent, Turn, TurnSnapshot,
    async_trait,
};

/// A reply that a channel sent.
#[derive(Clone, Debug, PartialEq)]
pub struct SentReply {
    /// The chat.
    pub chat: String,
    /// The text.
    pub content: String,
    /// The id of the reply.
    pub reply_id: String,
    /// The message that the reply answers.
    pub message_id: Option<MessageId>,
}

type ReplyObserver = Box<dyn Fn(&Outbound) -> Result<()> + Send + Sync>;
type EventObserver = Box<dyn Fn(&StreamEvent, &Turn) -> Result<()> + Send + Sync>;

/// A channel that keeps what it sends, and fails or waits on request. The test submits messages with
/// [`say`](Self::say).
#[derive(Default)]
pub struct FakeChannel {
    /// The name of the channel.
    pub name: String,
    /// Whether messages are collected before their turn.
    pub debounce: bool,
    /// The role; the default is a service.
    pub role: Option<ChannelRole>,
    /// Whether the channel is disabled.
    pub disabled: bool,
    /// The handler of the gateway; see [`open`](Self::open).
    pub handler: OnceLock<MessageHandler>,
    /// The replies that were sent.
    pub sent: watch::Sender<Vec<SentReply>>,
    /// Errors for the next sends, last one first.
    pub failures: Mutex<Vec<Error>>,
    /// Errors for the next starts, last one first.
    pub start_failures: Mutex<Vec<Error>>,
    /// The decision about messages that arrive during a turn.
    pub admission: Mutex<Option<Admission>>,
    /// The turns about which `admit_message` was asked.
    pub snapshots: Mutex<Vec<TurnSnapshot>>,
    /// The number of starts.
    pub starts: watch::Sender<usize>,
    /// The number of stops.
    pub stops: watch::Sender<usize>,
    /// Whether `start` returns only when the gateway stops.
    pub blocks_in_start: bool,
    /// The token that stops the gateway, once the channel has started.
    pub stop: OnceLock<CancellationToken>,
    /// Called with each reply before it counts as sent.
    pub on_send: Option<ReplyObserver>,
    /// Called with each stream event, in a later poll.
    pub on_event: Option<EventObserver>,
}

impl FakeChannel {
    /// Creates a channel of this name.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }

    /// Keeps the handler of the gateway and returns the channel for `provide_channels`.
    pub fn open(self: &Arc<Self>, handler: &MessageHandler) -> Arc<dyn Channel> {
        let _ = self.handler.set(Arc::clone(handler));
        Arc::clone(self) as Arc<dyn Channel>
    }

    /// Submits a message of the owner `ada`.
    pub async fn say(&self, chat: &str, text: &str) -> Result<Arc<InboundReceipt>> {
        self.say_as((Role::Owner, "ada"), chat, text, None).await
    }

    /// Submits a message of this user, with an idempotency key.
    pub async fn say_as(
        &self,
        by: (Role, &str),
        chat: &str,
        text: &str,
        key: Option<&str>,
    ) -> Result<Arc<InboundReceipt>> {
        let message = ChannelMessage::new(format!("{}:{chat}", self.name), &self.name, text)
            .chat_id(chat)
            .active();
        self.hand_in(message, by.0, by.1, key).await
    }

    /// Submits this message.
    ///
    /// # Panics
    ///
    /// Panics if no gateway has opened the channel.
    pub async fn hand_in(
        &self,
        message: impl Into<Inbound>,
        role: Role,
        id: &str,
        key: Option<&str>,
    ) -> Result<Arc<InboundReceipt>> {
        let inbound = message.into();
        let sender = Sender {
            role,
            channel: self.name.clone(),
            chat_id: inbound.message.chat_id().unwrap().into_owned(),
            id: id.to_owned(),
            name: String::new(),
        };
        let receipt = Arc::new(InboundReceipt::new(key.map(str::to_owned)));
        let inbound = inbound
            .with_sender(sender)
            .with_receipt(Arc::clone(&receipt));
        self.handler.get().unwrap()(inbound).await?;
        Ok(receipt)
    }

    /// Waits until this number of replies was sent, and returns all. With a paused clock, it fails if they never come.
    pub async fn wait_sent(&self, count: usize) -> Vec<SentReply> {
        let mut sent = self.sent.subscribe();
        let enough = sent.wait_for(|sent| sent.len() >= count);
        let day = Duration::from_hours(24);
        tokio::time::timeout(day, enough)
            .await
            .unwrap()
            .unwrap()
            .clone()
    }

    /// Returns the texts of the replies.
    pub fn contents(&self) -> Vec<String> {
        let sent = self.sent.borrow();
        sent.iter().map(|sent| sent.content.clone()).collect()
    }
}

#[async_trait]
impl Channel for FakeChannel {
    fn name(&self) -> &str {
        &self.name
    }

    async fn start(&self, stop: CancellationToken) -> Result<()> {
        let _ = self.stop.set(stop.clone());
        self.starts.send_modify(|count| *count += 1);
        if self.blocks_in_start {
            stop.cancelled().await;
        }
        self.start_failures
            .lock()
            .unwrap()
            .pop()
            .map_or(Ok(()), Err)
    }

    async fn stop(&self) -> Result<()> {
        self.stops.send_modify(|count| *count += 1);
        Ok(())
    }

    async fn send(&self, reply: &Outbound) -> Result<()> {
        if let Some(error) = self.failures.lock().unwrap().pop() {
            return Err(error);
        }
        if let Some(on_send) = &self.on_send {
            on_send(reply)?;
        }
        let attempt = reply.attempt.as_ref();
        let sent = SentReply {
            chat: reply.chat_id().unwrap_or_default().into_owned(),
            content: reply.content().into_owned(),
            reply_id: attempt.map_or_else(String::new, |attempt| String::from(&attempt.reply_id)),
            message_id: attempt.and_then(|attempt| attempt.message_id.clone()),
        };
        self.sent.send_modify(|all| all.push(sent));
        Ok(())
    }

    async fn on_event(&self, event: &StreamEvent, turn: &Turn) -> Result<()> {
        let Some(on_event) = &self.on_event else {
            return Ok(());
        };
        tokio::task::yield_now().await;
        on_event(event, turn)
    }

    async fn admit_message(
        &self,
        _message: &Inbound,
        turn: &TurnSnapshot,
    ) -> Result<Option<Admission>> {
        self.snapshots.lock().unwrap().push(turn.clone());
        Ok(self.admission.lock().unwrap().clone())
    }

    fn needs_debounce(&self) -> bool {
        self.debounce
    }

    fn is_enabled(&self) -> bool {
        !self.disabled
    }

    fn role(&self) -> ChannelRole {
        self.role.unwrap_or(ChannelRole::Service)
    }
}
