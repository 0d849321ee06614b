//! A gateway in a temporary directory, an echo model that can be held up, and fake channels.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use bub_gateway::{
    Gateway, GatewayHooks, NoHouse, Options, Outcome, Recovered, ReplyTo, Ticket,
    spoken::{self, ByTool},
};
use bub_kernel::{
    Admission, BoxFuture, CancellationToken, Channel, ChannelMessage, ChannelRole, Delivery,
    Envelope, Error, ErrorKind, Framework, FrameworkRef, MessageHandler, PluginContext, Prompt,
    Provided, Result, Role, Sender, State, StatePatch, SteeringHandle, SteeringInbox, TurnSnapshot,
    hooks,
};
use bub_tape::{
    Durability,
    fs::{Fs, RealFs},
};
use tokio::sync::{Notify, Semaphore, watch};

/// What was sent by a channel: chat, content, reply id.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sent {
    pub(crate) chat: String,
    pub(crate) content: String,
    pub(crate) reply_id: String,
    pub(crate) inbound_id: Option<String>,
}

#[derive(Default)]
pub(crate) struct Fake {
    pub(crate) name: String,
    pub(crate) debounce: bool,
    pub(crate) role: Option<ChannelRole>,
    pub(crate) disabled: bool,
    pub(crate) handler: OnceLock<MessageHandler>,
    pub(crate) sent: watch::Sender<Vec<Sent>>,
    /// The next sends fail with these.
    pub(crate) failures: Mutex<Vec<Error>>,
    pub(crate) start_failures: Mutex<Vec<Error>>,
    pub(crate) admission: Mutex<Option<Admission>>,
    pub(crate) snapshots: Mutex<Vec<TurnSnapshot>>,
    pub(crate) starts: watch::Sender<usize>,
    pub(crate) stops: watch::Sender<usize>,
    pub(crate) blocks_in_start: bool,
    /// By which it can end the gateway, once it runs.
    pub(crate) stop: OnceLock<CancellationToken>,
}

impl Fake {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }

    /// Hands a message in, as an adapter would.
    pub(crate) async fn say(&self, chat: &str, text: &str) -> Result<Arc<Ticket>> {
        self.say_as((Role::Owner, "ada"), chat, text, None).await
    }

    pub(crate) async fn say_as(
        &self,
        by: (Role, &str),
        chat: &str,
        text: &str,
        key: Option<&str>,
    ) -> Result<Arc<Ticket>> {
        let message = ChannelMessage::new(format!("{}:{chat}", self.name), &self.name, text)
            .chat_id(chat)
            .active();
        self.hand_in(message.into(), by.0, by.1, key).await
    }

    pub(crate) async fn hand_in(
        &self,
        message: Envelope,
        role: Role,
        id: &str,
        key: Option<&str>,
    ) -> Result<Arc<Ticket>> {
        let chat_id = message.chat_id().unwrap().into_owned();
        let sender = Sender {
            role,
            channel: self.name.clone(),
            chat_id,
            id: id.to_owned(),
            name: String::new(),
        };
        let ticket = Arc::new(Ticket::new(key.map(str::to_owned)));
        let mut message = message.with_sender(sender);
        message.put_slot(Arc::clone(&ticket));
        self.handler.get().unwrap()(message).await.map(|()| ticket)
    }

    pub(crate) async fn wait_sent(&self, count: usize) -> Vec<Sent> {
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

/// What never comes is a failure, not a wait: where the clock stands still, a day is over at once.
async fn in_time<T>(waiting: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_hours(24), waiting)
        .await
        .unwrap()
}

pub(crate) struct FakeHandle(pub(crate) Arc<Fake>);

impl Channel for FakeHandle {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn start(&self, stop: CancellationToken) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
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
        })
    }

    fn stop(&self) -> BoxFuture<'_, Result<()>> {
        self.0.stops.send_modify(|count| *count += 1);
        Box::pin(std::future::ready(Ok(())))
    }

    fn send<'a>(&'a self, message: &'a Envelope) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if let Some(error) = self.0.failures.lock().unwrap().pop() {
                return Err(error);
            }
            let reply = message.slot::<ReplyTo>().unwrap();
            let sent = Sent {
                chat: message.chat_id().unwrap().into_owned(),
                content: message.content().into_owned(),
                reply_id: reply.reply_id.clone(),
                inbound_id: reply.inbound_id.clone(),
            };
            self.0.sent.send_modify(|all| all.push(sent));
            Ok(())
        })
    }

    fn admit_message<'a>(
        &'a self,
        _message: &'a Envelope,
        turn: &'a TurnSnapshot,
    ) -> BoxFuture<'a, Result<Option<Admission>>> {
        self.0.snapshots.lock().unwrap().push(turn.clone());
        let decided = self.0.admission.lock().unwrap().clone();
        Box::pin(std::future::ready(Ok(decided)))
    }

    fn needs_debounce(&self) -> bool {
        self.0.debounce
    }

    fn enabled(&self) -> bool {
        !self.0.disabled
    }

    fn role(&self) -> ChannelRole {
        self.0.role.unwrap_or(ChannelRole::Service)
    }
}

/// Echoes; a prompt that begins with `wait` waits for a permit, `fail` fails, `tell CHAT` sends something by a tool
/// first (`script CHAT` without the router), and with `wait` after it waits then.
#[derive(Clone)]
pub(crate) struct Echo {
    pub(crate) channels: Vec<Arc<Fake>>,
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) asked: watch::Sender<Vec<String>>,
    pub(crate) deliveries: Arc<Mutex<Vec<Delivery>>>,
    pub(crate) senders: Arc<Mutex<Vec<Sender>>>,
    pub(crate) inbox: Arc<Inbox>,
    /// The stages that `on_error` was told of.
    pub(crate) failed: Arc<Mutex<Vec<String>>>,
    pub(crate) take_steering: Arc<std::sync::atomic::AtomicBool>,
    framework: FrameworkRef,
}

#[derive(Default)]
pub(crate) struct Inbox {
    held: Mutex<HashMap<String, Vec<Envelope>>>,
    pub(crate) arrived: Notify,
}

impl SteeringInbox for Inbox {
    fn enqueue<'a>(
        &'a self,
        session_id: &'a str,
        message: Envelope,
    ) -> BoxFuture<'a, Result<bool>> {
        self.held
            .lock()
            .unwrap()
            .entry(session_id.to_owned())
            .or_default()
            .push(message);
        self.arrived.notify_one();
        Box::pin(std::future::ready(Ok(true)))
    }

    fn drain<'a>(&'a self, session_id: &'a str) -> BoxFuture<'a, Result<Vec<Envelope>>> {
        let taken = self
            .held
            .lock()
            .unwrap()
            .remove(session_id)
            .unwrap_or_default();
        Box::pin(std::future::ready(Ok(taken)))
    }

    fn count(&self, session_id: &str) -> usize {
        self.held
            .lock()
            .unwrap()
            .get(session_id)
            .map_or(0, Vec::len)
    }
}

impl Echo {
    pub(crate) fn new(channels: Vec<Fake>) -> Self {
        Self {
            channels: channels.into_iter().map(Arc::new).collect(),
            permits: Arc::new(Semaphore::new(0)),
            asked: watch::Sender::default(),
            deliveries: Arc::default(),
            senders: Arc::default(),
            inbox: Arc::default(),
            failed: Arc::default(),
            take_steering: Arc::default(),
            framework: FrameworkRef::default(),
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
    fn resolve_session(&self, message: &Envelope) -> Result<Option<String>> {
        refuse(message, "nowhere").map(|()| None)
    }

    fn admit_message(&self, message: &Envelope) -> Result<Option<Admission>> {
        refuse(message, "undecided").map(|()| None)
    }

    fn build_prompt(&self, message: &Envelope) -> Result<Option<Prompt>> {
        refuse(message, "broken").map(|()| None)
    }

    fn on_error(&self, stage: &str) -> Result<()> {
        self.failed.lock().unwrap().push(stage.to_owned());
        Err(Error::unknown("nobody can be told"))
    }

    async fn load_state(&self, message: &Envelope) -> Result<StatePatch> {
        if let Some(lifespan) = message.lifespan() {
            lifespan.enter().await?;
        }
        if let Some(delivery) = message.slot::<Delivery>() {
            self.deliveries.lock().unwrap().push((*delivery).clone());
        }
        self.senders
            .lock()
            .unwrap()
            .push((*message.sender()).clone());
        Ok(StatePatch::new())
    }

    async fn run_model(&self, prompt: &Prompt, session_id: &str, state: &State) -> Result<String> {
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
            ["tell", chat, ..] if self.deliveries.lock().unwrap().last().unwrap().attempt == 1 => {
                let mut told: Envelope = ChannelMessage::new(session_id, "lab", "told")
                    .chat_id(chat)
                    .into();
                told.put_slot(Arc::new(ByTool));
                self.framework
                    .get()
                    .unwrap()
                    .router()
                    .unwrap()
                    .dispatch(&told)
                    .await?;
            }
            ["script", chat] => spoken::note("lab", chat),
            _ => {}
        }
        if text.starts_with("wait") || text.ends_with("wait") {
            self.permits.acquire().await.unwrap().forget();
        }
        let mut answer = format!("echo: {text}");
        if self.take_steering.load(std::sync::atomic::Ordering::SeqCst) {
            for steered in state
                .slot::<SteeringHandle>()
                .unwrap()
                .0
                .drain(session_id)
                .await?
            {
                answer += " + ";
                answer += &steered.content();
            }
        }
        Ok(answer)
    }

    async fn dispatch_outbound(&self, message: &Envelope) -> Result<bool> {
        let router = self
            .framework
            .get()
            .and_then(|framework| framework.router());
        match router {
            Some(router) => router.dispatch(message).await,
            None => Ok(false),
        }
    }

    fn provide_channels(&self, message_handler: &MessageHandler) -> Vec<Arc<dyn Channel>> {
        let open = |fake: &Arc<Fake>| {
            let _ = fake.handler.set(Arc::clone(message_handler));
            Arc::new(FakeHandle(Arc::clone(fake))) as Arc<dyn Channel>
        };
        self.channels.iter().map(open).collect()
    }

    fn provide_steering_inbox(&self) -> Provided<dyn SteeringInbox> {
        Provided::new(Arc::clone(&self.inbox) as Arc<dyn SteeringInbox>)
    }
}

fn refuse(message: &Envelope, text: &str) -> Result<()> {
    if message.content() == text {
        Err(Error::unknown("on purpose"))
    } else {
        Ok(())
    }
}

/// A gateway that runs.
pub(crate) struct World {
    pub(crate) echo: Echo,
    pub(crate) recovered: Recovered,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<Result<()>>,
    pub(crate) framework: Framework,
}

pub(crate) fn options(directory: &Path) -> Options {
    Options {
        directory: directory.to_owned(),
        durability: Durability::Os,
        debounce: Duration::from_secs(1),
        max_wait: Duration::from_secs(10),
        active_window: Duration::from_mins(1),
        stream_output: false,
        drain: Duration::from_secs(30),
        session_queue: 100,
        queue: 10_000,
        turns: 1_000,
        fs: Arc::new(RealFs) as Arc<dyn Fs>,
        house: Arc::new(NoHouse),
    }
}

impl World {
    pub(crate) async fn open(directory: &Path, fakes: Vec<Fake>) -> Self {
        Self::with(options(directory), Echo::new(fakes)).await
    }

    pub(crate) async fn with(options: Options, echo: Echo) -> Self {
        Self::try_with(options, echo, &["all"]).await.unwrap()
    }

    pub(crate) async fn try_with(options: Options, echo: Echo, names: &[&str]) -> Result<Self> {
        let mut plugin = echo.clone();
        let make = move |context: &PluginContext<'_>| {
            plugin.framework = context.framework.clone();
            Ok::<_, Error>(plugin)
        };
        let framework = Framework::builder()
            .plugin("gateway", GatewayHooks)
            .plugin_with("echo", make)
            .build();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let running = framework.running().await?;
        let gateway = Gateway::open(&framework, options, &names)?;
        let recovered = gateway.recovered();
        let stop = CancellationToken::new();
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let task = tokio::spawn({
            let stop = stop.clone();
            async move {
                let outcome = gateway
                    .run(stop, || ready.send(()).unwrap_or_default())
                    .await;
                running.close().await?;
                outcome
            }
        });
        is_ready.await.unwrap();
        Ok(Self {
            echo,
            recovered,
            stop,
            task,
            framework,
        })
    }

    pub(crate) fn channel(&self, at: usize) -> &Arc<Fake> {
        &self.echo.channels[at]
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn ended(self) {
        self.task.await.unwrap().unwrap();
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}

pub(crate) fn replies(outcome: &Outcome) -> u32 {
    match outcome {
        Outcome::Done { replies } => *replies,
        other => panic!("{other:?}"),
    }
}
