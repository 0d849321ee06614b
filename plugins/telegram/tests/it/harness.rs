//! Test harness: a gateway with a bot, users who write to it, and a model that follows its prompt.
//!
//! The model of `bub::testing` cannot stop in the middle of an answer, which most of these tests need.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use bub::{
    gateway::{
        GatewayOptions, JournalKind,
        testing::{self, RunningGateway},
    },
    kernel::{
        Channel, Envelope, Error, ErrorKind, Framework, MessageHandler, ModelStream, Prompt,
        Result, Sender, StatePatch, StreamEvent, Turn, hooks,
    },
    settings::Secret,
    tape::{
        Durability,
        fs::{Fs, RealFs},
    },
};
use bub_telegram::{Bot, TelegramChannel, TelegramOptions};
use bub_testkit::telegram::{BotServer, TOKEN};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{Semaphore, watch};

/// User id of the owner.
pub(crate) const OWNER: i64 = 42;
/// User id of a member.
pub(crate) const MEMBER: i64 = 7;

/// A model that follows the message: `wait …` waits for a permit, `fail …` fails, `long N` answers with N letters, and
/// `grow …` answers word by word, one per permit, and fails at the word `break`.
#[derive(Clone)]
pub(crate) struct FakeTelegramModel {
    bot: Arc<Bot>,
    pub(crate) permits: Arc<Semaphore>,
    /// The content of each message, as the model sees it.
    pub(crate) prompts: watch::Sender<Vec<String>>,
    pub(crate) senders: Arc<Mutex<Vec<Sender>>>,
    /// The outcome of reading each attached file.
    pub(crate) files: watch::Sender<Vec<Result<usize, String>>>,
}

/// Returns the text that the user wrote from the content that the model gets.
pub(crate) fn written(content: &str) -> String {
    let line = content.lines().last().unwrap_or_default();
    match serde_json::from_str::<Value>(line) {
        Ok(value) => value["message"].as_str().unwrap_or_default().to_owned(),
        Err(_) => line.to_owned(),
    }
}

#[hooks]
impl FakeTelegramModel {
    async fn load_state(&self, turn: &Turn) -> Result<StatePatch> {
        if let Some(lifespan) = &turn.inbound().lifespan {
            lifespan.enter().await?;
        }
        self.senders.lock().unwrap().push(turn.sender().clone());
        Ok(StatePatch::new())
    }

    async fn build_prompt(&self, message: &Envelope) -> Result<Prompt> {
        for item in message.media() {
            let bytes = item
                .bytes()
                .await
                .map(|bytes| bytes.map_or(0, |bytes| bytes.len()));
            let outcome = bytes.map_err(|error| error.message().to_owned());
            self.files.send_modify(|files| files.push(outcome));
        }
        Ok(Prompt::Text(message.content().into_owned()))
    }

    async fn run_model_stream(&self, prompt: &Prompt) -> Result<ModelStream> {
        let content = prompt.text();
        self.prompts
            .send_modify(|prompts| prompts.push(content.clone()));
        let text = written(&content);
        let mut words = text.split(' ');
        match words.next() {
            Some("fail") => return Err(Error::new(ErrorKind::Provider, "the model is gone")),
            Some("wait") => self.permits.acquire().await.unwrap().forget(),
            Some("long") => {
                let count = words.next().unwrap().parse().unwrap();
                return Ok(ModelStream::from_text(
                    "abcdefgh ".repeat(count / 9 + 1).get(..count).unwrap(),
                ));
            }
            Some("say") => {
                let text = text.strip_prefix("say ").unwrap_or_default().to_owned();
                return Ok(ModelStream::from_text(text));
            }
            Some("grow") => {
                let words: Vec<String> = words.map(|word| format!("{word} ")).collect();
                let permits = Arc::clone(&self.permits);
                let stream = futures_util::stream::unfold(words.into_iter(), move |mut words| {
                    let permits = Arc::clone(&permits);
                    async move {
                        let word = words.next()?;
                        permits.acquire().await.unwrap().forget();
                        let broken = || Err(Error::new(ErrorKind::Provider, "the model is gone"));
                        let event = if word == "break " {
                            broken()
                        } else {
                            Ok(StreamEvent::Text(word))
                        };
                        Some((event, words))
                    }
                });
                return Ok(ModelStream::new(stream));
            }
            _ => {}
        }
        Ok(ModelStream::from_text(format!("echo: {text}")))
    }

    async fn dispatch_outbound(&self, message: &Envelope, turn: Option<&Turn>) -> Result<bool> {
        turn.unwrap().deliver(message.clone()).await
    }

    fn provide_channels(&self, message_handler: &MessageHandler) -> Vec<Arc<dyn Channel>> {
        vec![Arc::new(TelegramChannel::new(
            Arc::clone(&self.bot),
            Arc::clone(message_handler),
        ))]
    }
}

/// A running gateway.
pub(crate) struct TelegramFixture {
    pub(crate) model: FakeTelegramModel,
    directory: PathBuf,
    running: RunningGateway,
}

/// Returns options with short intervals, an owner and a member.
pub(crate) fn options(server: &BotServer, home: &Path) -> TelegramOptions {
    let mut options = TelegramOptions::with_home(home.to_owned());
    options.token = Some(Secret::from(TOKEN.to_owned()));
    options.api_base = server.url();
    options.owners = vec![OWNER.to_string()];
    options.allow_users = Some(vec![MEMBER.to_string()]);
    options.chat_interval = Duration::from_millis(5);
    options.message_interval = Duration::from_millis(1);
    options
}

fn gateway_options(home: &Path, fs: Arc<dyn Fs>) -> GatewayOptions {
    let journal = JournalKind::File {
        directory: home.join("gateway"),
        durability: Durability::Os,
        fs,
    };
    GatewayOptions {
        debounce: Duration::from_millis(20),
        max_wait: Duration::from_secs(1),
        active_window: Duration::from_millis(50),
        drain: Duration::from_secs(2),
        ..testing::options(journal)
    }
}

impl TelegramFixture {
    pub(crate) async fn start(server: &BotServer, home: &TempDir) -> Self {
        Self::with(options(server, home.path()), home.path()).await
    }

    pub(crate) async fn with(options: TelegramOptions, home: &Path) -> Self {
        Self::on(Arc::new(RealFs), options, home).await
    }

    pub(crate) async fn on(fs: Arc<dyn Fs>, options: TelegramOptions, home: &Path) -> Self {
        let model = FakeTelegramModel {
            bot: Arc::new(Bot::new(options)),
            permits: Arc::new(Semaphore::new(0)),
            prompts: watch::Sender::default(),
            senders: Arc::default(),
            files: watch::Sender::default(),
        };
        let framework = Framework::builder().plugin("model", model.clone()).build();
        let running = RunningGateway::start(&framework, gateway_options(home, fs), &["all"])
            .await
            .unwrap();
        Self {
            model,
            directory: home.join("gateway"),
            running,
        }
    }

    pub(crate) fn is_typing(&self) -> bool {
        self.model.bot.is_typing()
    }

    /// Waits for an error of the channel and returns it.
    pub(crate) async fn last_error(&self) -> Option<String> {
        let channel = self
            .wait_status(|channel| channel["last_error"].is_string())
            .await;
        channel["last_error"].as_str().map(str::to_owned)
    }

    /// Waits until the status of the channel matches, and returns it.
    pub(crate) async fn wait_status(&self, matches: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..1000 {
            let status =
                bub::gateway::status::send_request(&self.directory, &json!({"do": "status"}))
                    .await
                    .unwrap();
            let channel = status
                .map(|status| status["channels"][0].clone())
                .unwrap_or_default();
            if matches(&channel) {
                return channel;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the status of the channel never matched");
    }

    pub(crate) async fn wait_prompts(&self, count: usize) -> Vec<String> {
        self.model
            .prompts
            .subscribe()
            .wait_for(|prompts| prompts.len() >= count)
            .await
            .unwrap()
            .clone()
    }

    /// Stops the gateway during a turn.
    pub(crate) async fn interrupt(self) {
        // The gateway does not wait for the blocked turn.
        self.stop().await;
    }

    pub(crate) async fn stop(self) {
        self.running.stop().await.unwrap();
    }
}

/// Asserts that no request violated the specification of the API.
pub(crate) fn check(server: &BotServer) {
    assert_eq!(server.violations(), Vec::<String>::new());
}
