//! A gateway in a temporary directory, and an echo model that can wait. Gateway and channels are those of `bub::testing`.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use bub_gateway::{
    GatewayOptions, JournalKind, JournalRecovery,
    testing::{self, FakeModel, RunningGateway},
};
pub(crate) use bub_kernel::testing::FakeChannel;
use bub_kernel::{
    Admission, Channel, ChannelMessage, Envelope, Error, Framework, Inbound, InboundAttempt,
    MessageHandler, MessageId, MessageOutcome, Outbound, Prompt, Provided, Result, Sender, Service,
    SessionId, StatePatch, SteeringInbox, Turn, async_trait, hooks,
};
use bub_tape::{Durability, MemoryStore, TapeStore, fs::Fs};
use tokio::sync::{Notify, Semaphore, watch};

/// Fails if the future takes longer than a day. With a paused clock, a day passes at once.
async fn in_time<T>(waiting: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_hours(24), waiting)
        .await
        .unwrap()
}

/// Model that echoes the prompt. A prompt that begins or ends with `wait` waits for a permit. `fail` fails. `tell CHAT`
/// first sends a message with a tool. `script CHAT` only marks a message as sent by a tool. `,switch SESSION` switches
/// the chat.
#[derive(Clone)]
pub(crate) struct Echo {
    model: FakeModel,
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
        let model = FakeModel::default();
        Self {
            channels: channels.into_iter().map(Arc::new).collect(),
            permits: Arc::clone(&model.permits),
            asked: model.prompts.clone(),
            senders: Arc::clone(&model.senders),
            model,
            attempts: Arc::default(),
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
        in_time(self.model.wait_prompts(count)).await
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
        self.model.ask(&text).await?;
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
        let channels = self.channels.iter();
        channels.map(|fake| fake.open(message_handler)).collect()
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
