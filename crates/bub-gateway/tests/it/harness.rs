//! A gateway in a temporary directory, an echo model that can wait, and fake channels.
//!
//! `bub::testing` has no fake that stops a turn at a chosen step; the gateway itself is that of `bub_gateway::testing`.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use bub_gateway::{
    GatewayOptions, JournalKind, JournalRecovery,
    testing::{self, RunningGateway},
};
use bub_kernel::{
    Admission, CancellationToken, Channel, ChannelMessage, ChannelRole, Envelope, Error, ErrorKind,
    Framework, Inbound, InboundAttempt, InboundReceipt, MessageHandler, MessageId, MessageOutcome,
    Outbound, Prompt, Provided, Result, Role, Sender, Service, SessionId, StatePatch,
    SteeringInbox, Turn, TurnSnapshot, async_trait, hooks,
};
use bub_tape::{Durability, MemoryStore, TapeStore, fs::Fs};
use tokio::sync::{Notify, Semaphore, watch};

/// A reply that a channel sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SentReply {
    pub(crate) chat: String,
    pub(crate) content: String,
    pub(crate) reply_id: String,
    pub(crate) message_id: Option<MessageId>,
}

#[derive(Default)]
pub(crate) struct FakeChannel {
    pub(crate) name: String,
    pub(crate) debounce: bool,
    pub(crate) role: Option<ChannelRole>,
    pub(crate) disabled: bool,
    pub(crate) handler: OnceLock<MessageHandler>,
    pub(crate) sent: watch::Sender<Vec<SentReply>>,
    /// Errors for the next sends, last one first.
    pub(crate) failures: Mutex<Vec<Error>>,
    pub(crate) start_failures: Mutex<Vec<Error>>,
    pub(crate) admission: Mutex<Option<Admission>>,
    pub(crate) snapshots: Mutex<Vec<TurnSnapshot>>,
    pub(crate) starts: watch::Sender<usize>,
    pub(crate) stops: watch::Sender<usize>,
    pub(crate) blocks_in_start: bool,
    /// Token that stops the gateway. Set when the channel has started.
    pub(crate) stop: OnceLock<CancellationToken>,
}

impl FakeChannel {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }

    /// Submits a message as an owner.
    pub(crate) async fn say(&self, chat: &str, text: &str) -> Result<Arc<InboundReceipt>> {
        self.say_as((Role::Owner, "ada"), chat, text, None).await
    }

    pub(crate) async fn say_as(
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

    pub(crate) async fn hand_in(
        &self,
        message: impl Into<Inbound>,
        role: Role,
        id: &str,
        key: Option<&str>,
    ) -> Result<Arc<InboundReceipt>> {
        let inbound = message.into();
        let chat_id = inbound.message.chat_id().unwrap().into_owned();
        let sender = Sender {
            role,
            channel: self.name.clone(),
            chat_id,
            id: id.to_owned(),
            name: String::new(),
        };
        let receipt = Arc::new(InboundReceipt::new(key.map(str::to_owned)));
        let inbound = inbound
            .with_sender(sender)
            .with_receipt(Arc::clone(&receipt));
        let accepted = self.handler.get().unwrap()(inbound).await;
        accepted.map(|()| receipt)
    }

    pub(crate) async fn wait_sent(&self, count: usize) -> Vec<SentReply> {
        in_time(self.sent.subscribe().wait_for(|sent| sent.len() >= count))
            .await
            .unwrap()
            .clone()
    }

    pub(crate) fn contents(&self) -> Vec<String> {
        self.sent
            .borrow()
            .iter()
            .map(|sent| sent.content.clone())
            .collect()
    }
}

/// Fails if the future takes longer than a day. With a paused clock, a day passes at once.
async fn in_time<T>(waiting: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_hours(24), waiting)
        .await
        .unwrap()
}

pub(crate) struct FakeHandle(pub(crate) Arc<FakeChannel>);

#[async_trait]
impl Channel for FakeHandle {
    fn name(&self) -> &str {
        &self.0.name
    }

    async fn start(&self, stop: CancellationToken) -> Result<()> {
        let _ = self.0.stop.set(stop.clone());
        self.0.starts.send_modify(|count| *count += 1);
        if self.0.blocks_in_start {
            stop.cancelled().await;
        }
        self.0
            .start_failures
            .lock()
            .unwrap()
            .pop()
            .map_or(Ok(()), Err)
    }

    async fn stop(&self) -> Result<()> {
        self.0.stops.send_modify(|count| *count += 1);
        Ok(())
    }

    async fn send(&self, reply: &Outbound) -> Result<()> {
        if let Some(error) = self.0.failures.lock().unwrap().pop() {
            return Err(error);
        }
        let attempt = reply.attempt.as_ref().unwrap();
        let sent = SentReply {
            chat: reply.chat_id().unwrap().into_owned(),
            content: reply.content().into_owned(),
            reply_id: String::from(&attempt.reply_id),
            message_id: attempt.message_id.clone(),
        };
        self.0.sent.send_modify(|all| all.push(sent));
        Ok(())
    }

    async fn admit_message(
        &self,
        _message: &Inbound,
        turn: &TurnSnapshot,
    ) -> Result<Option<Admission>> {
        self.0.snapshots.lock().unwrap().push(turn.clone());
        let decided = self.0.admission.lock().unwrap().clone();
        Ok(decided)
    }

    fn needs_debounce(&self) -> bool {
        self.0.debounce
    }

    fn is_enabled(&self) -> bool {
        !self.0.disabled
    }

    fn role(&self) -> ChannelRole {
        self.0.role.unwrap_or(ChannelRole::Service)
    }
}

/// Model that echoes the prompt. A prompt that begins or ends with `wait` waits for a permit. `fail` fails. `tell CHAT`
/// first sends a message with a tool. `script CHAT` only marks a message as sent by a tool. `,switch SESSION` switches
/// the chat.
#[derive(Clone)]
pub(crate) struct Echo {
    pub(crate) channels: Vec<Arc<FakeChannel>>,
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) asked: watch::Sender<Vec<String>>,
    pub(crate) attempts: Arc<Mutex<Vec<InboundAttempt>>>,
    pub(crate) senders: Arc<Mutex<Vec<Sender>>>,
    pub(crate) inbox: Arc<FakeSteeringInbox>,
    /// Stages that were reported to `on_error`.
    pub(crate) failed: Arc<Mutex<Vec<String>>>,
    pub(crate) take_steering: Arc<std::sync::atomic::AtomicBool>,
    /// Session of each turn.
    pub(crate) sessions: Arc<Mutex<Vec<SessionId>>>,
    /// Content of each message whose session was resolved. If it begins with `slow`, resolving waits for a permit.
    pub(crate) resolved: Arc<Mutex<Vec<String>>>,
    /// Session of each chat that a turn switched.
    pub(crate) switched: Arc<Mutex<HashMap<String, String>>>,
    /// Tape store. Without it, each turn has its own tape.
    pub(crate) tapes: Option<Arc<MemoryStore>>,
    /// Notified when the dispatch of an answer that ends with `hold` waits for a permit.
    pub(crate) holding: Arc<Notify>,
    /// Whether each turn streams its answer to the channel.
    pub(crate) streams: Arc<Mutex<Vec<bool>>>,
    pub(crate) services: Vec<Arc<dyn Service>>,
}

#[derive(Default)]
pub(crate) struct FakeSteeringInbox {
    held: Mutex<HashMap<SessionId, Vec<Inbound>>>,
    pub(crate) arrived: Notify,
}

#[async_trait]
impl SteeringInbox for FakeSteeringInbox {
    async fn enqueue(&self, session_id: &SessionId, message: Inbound) -> Result<bool> {
        self.held
            .lock()
            .unwrap()
            .entry(session_id.clone())
            .or_default()
            .push(message);
        self.arrived.notify_one();
        Ok(true)
    }

    async fn drain(&self, session_id: &SessionId) -> Result<Vec<Inbound>> {
        let admission = self
            .held
            .lock()
            .unwrap()
            .remove(session_id)
            .unwrap_or_default();
        Ok(admission)
    }

    fn count(&self, session_id: &SessionId) -> usize {
        self.held
            .lock()
            .unwrap()
            .get(session_id)
            .map_or(0, Vec::len)
    }
}

impl Echo {
    pub(crate) fn new(channels: Vec<FakeChannel>) -> Self {
        Self {
            channels: channels.into_iter().map(Arc::new).collect(),
            permits: Arc::new(Semaphore::new(0)),
            asked: watch::Sender::default(),
            attempts: Arc::default(),
            senders: Arc::default(),
            inbox: Arc::default(),
            failed: Arc::default(),
            take_steering: Arc::default(),
            sessions: Arc::default(),
            resolved: Arc::default(),
            switched: Arc::default(),
            tapes: None,
            holding: Arc::default(),
            streams: Arc::default(),
            services: Vec::new(),
        }
    }

    pub(crate) async fn wait_asked(&self, count: usize) -> Vec<String> {
        in_time(
            self.asked
                .subscribe()
                .wait_for(|asked| asked.len() >= count),
        )
        .await
        .unwrap()
        .clone()
    }
}

#[hooks(crate = bub_kernel)]
impl Echo {
    async fn resolve_session(&self, message: &Envelope) -> Result<Option<String>> {
        let content = message.content().into_owned();
        self.resolved.lock().unwrap().push(content.clone());
        if content.starts_with("slow") {
            let session_id = message.session_id().map(std::borrow::Cow::into_owned);
            self.permits.acquire().await.unwrap().forget();
            return Ok(session_id);
        }
        fail_if(message, "nowhere")?;
        let chat = message.chat_id().unwrap_or_default();
        Ok(self.switched.lock().unwrap().get(&*chat).cloned())
    }

    async fn admit_message(&self, message: &Envelope) -> Result<Option<Admission>> {
        if message.content().starts_with("ponder") {
            self.permits.acquire().await.unwrap().forget();
        }
        fail_if(message, "undecided").map(|()| None)
    }

    fn build_prompt(&self, message: &Envelope) -> Result<Option<Prompt>> {
        fail_if(message, "broken").map(|()| None)
    }

    fn on_error(&self, stage: &str) -> Result<()> {
        self.failed.lock().unwrap().push(stage.to_owned());
        Err(Error::unknown("the failure cannot be reported"))
    }

    async fn load_state(&self, turn: &Turn) -> Result<StatePatch> {
        if let Some(lifespan) = &turn.inbound().lifespan {
            lifespan.enter().await?;
        }
        if let Some(attempt) = &turn.inbound().attempt {
            self.attempts.lock().unwrap().push(attempt.clone());
        }
        self.senders.lock().unwrap().push(turn.sender().clone());
        let streams = turn.inbound().stream_output;
        self.streams.lock().unwrap().push(streams);
        let session_id = turn.session_id().clone();
        self.sessions.lock().unwrap().push(session_id);
        Ok(StatePatch::new())
    }

    async fn run_model(&self, prompt: &Prompt, turn: &Turn) -> Result<String> {
        let text = prompt.text();
        self.asked.send_modify(|asked| asked.push(text.clone()));
        if text.starts_with("fail") {
            if text.ends_with("wait") {
                self.permits.acquire().await.unwrap().forget();
            }
            return Err(Error::new(ErrorKind::Provider, "the model is gone"));
        }
        let words: Vec<_> = text.split(' ').collect();
        match words[..] {
            ["tell", chat, ..] if turn.inbound().attempt.as_ref().unwrap().number == 1 => {
                let message =
                    ChannelMessage::new(turn.session_id(), "lab", "by tool").chat_id(chat);
                turn.deliver(Outbound::from_tool(message)).await?;
            }
            ["script", chat] => {
                turn.mark_sent_by_tool("lab", chat);
            }

            _ => {}
        }
        if text.starts_with("wait") || text.ends_with("wait") {
            self.permits.acquire().await.unwrap().forget();
        }
        if let [",switch", session_id, ..] = words[..] {
            let chat = turn.message().chat_id().unwrap().into_owned();
            let mut switched = self.switched.lock().unwrap();
            switched.insert(chat, session_id.to_owned());
            turn.switch_session(session_id.into());
        }
        let mut answer = format!("echo: {text}");
        if self.take_steering.load(std::sync::atomic::Ordering::SeqCst) {
            for steered in self.inbox.drain(turn.session_id()).await? {
                answer += " + ";
                answer += &steered.message.content();
            }
        }
        Ok(answer)
    }

    async fn dispatch_outbound(&self, message: &Envelope, turn: Option<&Turn>) -> Result<bool> {
        if message.content().ends_with("hold") {
            self.holding.notify_one();
            self.permits.acquire().await.unwrap().forget();
        }
        turn.unwrap().deliver(message.clone()).await
    }

    fn provide_channels(&self, message_handler: &MessageHandler) -> Vec<Arc<dyn Channel>> {
        let open = |fake: &Arc<FakeChannel>| {
            let _ = fake.handler.set(Arc::clone(message_handler));
            Arc::new(FakeHandle(Arc::clone(fake))) as Arc<dyn Channel>
        };
        self.channels.iter().map(open).collect()
    }

    fn provide_services(&self) -> Vec<Arc<dyn Service>> {
        self.services.clone()
    }

    fn provide_tape_store(&self) -> Option<Provided<dyn TapeStore>> {
        let tapes = self.tapes.clone()?;
        Some(Provided::new(tapes as Arc<dyn TapeStore>))
    }

    fn provide_steering_inbox(&self) -> Provided<dyn SteeringInbox> {
        Provided::new(Arc::clone(&self.inbox) as Arc<dyn SteeringInbox>)
    }
}

fn fail_if(message: &Envelope, text: &str) -> Result<()> {
    if message.content() == text {
        Err(Error::unknown("on purpose"))
    } else {
        Ok(())
    }
}

/// A running gateway.
pub(crate) struct GatewayFixture {
    pub(crate) echo: Echo,
    pub(crate) recovered: JournalRecovery,
    running: RunningGateway,
    pub(crate) framework: Framework,
}

pub(crate) fn options(directory: &Path) -> GatewayOptions {
    testing::options(JournalKind::file(directory, Durability::Os))
}

/// Returns options with a journal on a file system that can fail.
pub(crate) fn options_on(
    fs: Arc<dyn Fs>,
    directory: &Path,
    durability: Durability,
) -> GatewayOptions {
    testing::options(JournalKind::File {
        directory: directory.to_owned(),
        durability,
        fs,
    })
}

impl GatewayFixture {
    pub(crate) async fn open(directory: &Path, fakes: Vec<FakeChannel>) -> Self {
        Self::with(options(directory), Echo::new(fakes)).await
    }

    pub(crate) async fn with(options: GatewayOptions, echo: Echo) -> Self {
        Self::try_with(options, echo, &["all"]).await.unwrap()
    }

    pub(crate) async fn try_with(
        options: GatewayOptions,
        echo: Echo,
        names: &[&str],
    ) -> Result<Self> {
        let framework = Framework::builder().plugin("echo", echo.clone()).build();
        let running = RunningGateway::start(&framework, options, names).await?;
        Ok(Self {
            echo,
            recovered: running.recovery(),
            running,
            framework,
        })
    }

    pub(crate) fn channel(&self, index: usize) -> &Arc<FakeChannel> {
        &self.echo.channels[index]
    }

    /// Waits until the gateway has stopped without a request.
    pub(crate) async fn ended(self) {
        self.running.wait().await.unwrap();
    }

    pub(crate) async fn stop(self) {
        self.running.stop().await.unwrap();
    }
}

pub(crate) fn replies(outcome: &MessageOutcome) -> u32 {
    match outcome {
        MessageOutcome::Done { replies, .. } => *replies,
        other => panic!("{other:?}"),
    }
}

/// Returns the message whose turn another message joined.
pub(crate) fn joined(outcome: &MessageOutcome) -> &MessageId {
    match outcome {
        MessageOutcome::Joined { message_id } => message_id,
        other => panic!("{other:?}"),
    }
}

/// Returns why a message was dropped.
pub(crate) fn dropped(outcome: &MessageOutcome) -> String {
    match outcome {
        MessageOutcome::Dropped { reason } => reason.to_string(),
        other => panic!("{other:?}"),
    }
}
