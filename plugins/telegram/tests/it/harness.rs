//! A gateway with a bot, and users who write to it. Gateway and model are those of `bub::gateway::testing`.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub(crate) use bub::gateway::testing::written_message as written;
use bub::{
    gateway::fields::APPROVAL_ID_FIELD,
    gateway::{
        GatewayOptions, JournalKind,
        testing::{self, FakeModel, RunningGateway},
    },
    kernel::{
        ApprovalRequest, Channel, ChannelMessage, Envelope, Framework, MediaItem, MediaKind,
        MessageHandler, MessageKind, Prompt, Result, Turn, hooks,
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

/// The plugin with the bot. It reads the files of each message. For a message with the word `approval`, it asks for an
/// approval, which ends with a permit.
#[derive(Clone)]
struct TelegramPlugin {
    bot: Arc<Bot>,
    /// The session of each turn, and whether the turn contains text of others.
    turns: watch::Sender<Vec<(String, bool)>>,
    approval_permits: Arc<Semaphore>,
    /// The outcome of reading each attached file.
    files: watch::Sender<Vec<Result<usize, String>>>,
}

#[hooks]
impl TelegramPlugin {
    async fn build_prompt(&self, message: &Envelope, turn: &Turn) -> Result<Prompt> {
        let session_id = turn.session_id().to_string();
        let has_foreign_text = !turn.inbound().untrusted.is_empty();
        self.turns
            .send_modify(|turns| turns.push((session_id, has_foreign_text)));
        if message.content().contains("approval") {
            let mut request = ApprovalRequest::default();
            "q1".clone_into(&mut request.id);
            request.sender = turn.sender().clone();
            let deadline = tokio::time::Instant::now() + Duration::from_mins(1);
            let approvals = turn.framework().approvals().clone();
            let pending = approvals.register(&request, deadline);
            let question = ChannelMessage::new(turn.session_id(), "telegram", "may I?")
                .kind(MessageKind::Approval)
                .chat_id(&request.sender.chat_id);
            let question = Envelope::from(question).with(APPROVAL_ID_FIELD, "q1");
            turn.deliver(question).await?;
            self.approval_permits.acquire().await.unwrap().forget();
            drop(pending);
        }
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

    /// Answers `files NAME…` with the files of these names in the home, and the text `see`.
    async fn render_outbound(&self, model_output: &str, turn: &Turn) -> Option<Vec<Envelope>> {
        let names = model_output.strip_prefix("files ")?;
        let sender = turn.sender();
        let reply = ChannelMessage::new(turn.session_id(), "telegram", "**see**");
        let mut reply = Envelope::from(reply.chat_id(&sender.chat_id));
        let item = |name: &str| {
            let (kind, mime) = match name.rsplit('.').next() {
                Some("png") => (MediaKind::Image, "image/png"),
                Some("mp4") => (MediaKind::Video, "video/mp4"),
                Some("mp3") => (MediaKind::Audio, "audio/mpeg"),
                Some("ogg") => (MediaKind::Audio, "audio/ogg"),
                Some("gif") => (MediaKind::Image, "image/gif"),
                _ => (MediaKind::Document, "application/pdf"),
            };
            let data = format!("data:{mime};base64,aGVsbG8=");
            let mut item = MediaItem::from_url(kind, mime, data);
            item.filename = Some(name.to_owned());
            item
        };
        reply.set_media(names.split(' ').map(item).collect());
        Some(vec![reply])
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
    /// The session of each turn, and whether the turn contains text of others.
    pub(crate) turns: watch::Sender<Vec<(String, bool)>>,
    /// Permits that end approval requests.
    pub(crate) approval_permits: Arc<Semaphore>,
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

pub(crate) fn gateway_options(home: &Path, fs: Arc<dyn Fs>) -> GatewayOptions {
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
        Self::with_gateway(gateway_options(home, fs), options, home).await
    }

    pub(crate) async fn with_gateway(
        gateway_options: GatewayOptions,
        options: TelegramOptions,
        home: &Path,
    ) -> Self {
        let (model, bot) = (FakeModel::default(), Arc::new(Bot::new(options)));
        let plugin = TelegramPlugin {
            bot: Arc::clone(&bot),
            files: watch::Sender::default(),
            turns: watch::Sender::default(),
            approval_permits: Arc::new(Semaphore::new(0)),
        };
        let framework = Framework::builder()
            .plugin("model", model.clone())
            .plugin("telegram", plugin.clone())
            .build();
        let running = RunningGateway::start(&framework, gateway_options, &["all"])
            .await
            .unwrap();
        Self {
            model,
            bot,
            files: plugin.files,
            turns: plugin.turns,
            approval_permits: plugin.approval_permits,
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
