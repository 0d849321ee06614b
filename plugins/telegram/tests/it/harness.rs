//! A gateway with a bot, and users who write to it. Gateway and model are those of `bub::gateway::testing`.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub(crate) use bub::gateway::testing::written_message as written;
use bub::{
    gateway::{
        GatewayOptions, JournalKind,
        testing::{self, FakeModel, RunningGateway},
    },
    kernel::{Channel, Envelope, Framework, MessageHandler, Prompt, Result, hooks},
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
use tokio::sync::watch;

/// User id of the owner.
pub(crate) const OWNER: i64 = 42;
/// User id of a member.
pub(crate) const MEMBER: i64 = 7;

/// The plugin with the bot. It reads the files of each message.
#[derive(Clone)]
struct TelegramPlugin {
    bot: Arc<Bot>,
    /// The outcome of reading each attached file.
    files: watch::Sender<Vec<Result<usize, String>>>,
}

#[hooks]
impl TelegramPlugin {
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

    fn provide_channels(&self, message_handler: &MessageHandler) -> Vec<Arc<dyn Channel>> {
        vec![Arc::new(TelegramChannel::new(
            Arc::clone(&self.bot),
            Arc::clone(message_handler),
        ))]
    }
}

/// A running gateway.
pub(crate) struct TelegramFixture {
    pub(crate) model: FakeModel,
    bot: Arc<Bot>,
    /// The outcome of reading each attached file.
    pub(crate) files: watch::Sender<Vec<Result<usize, String>>>,
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
        let (model, bot) = (FakeModel::default(), Arc::new(Bot::new(options)));
        let plugin = TelegramPlugin {
            bot: Arc::clone(&bot),
            files: watch::Sender::default(),
        };
        let framework = Framework::builder()
            .plugin("model", model.clone())
            .plugin("telegram", plugin.clone())
            .build();
        let running = RunningGateway::start(&framework, gateway_options(home, fs), &["all"])
            .await
            .unwrap();
        Self {
            model,
            bot,
            files: plugin.files,
            directory: home.join("gateway"),
            running,
        }
    }

    pub(crate) fn is_typing(&self) -> bool {
        self.bot.is_typing()
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
        self.model.wait_prompts(count).await
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
