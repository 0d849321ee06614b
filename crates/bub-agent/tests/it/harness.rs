//! The framework of `bub::testing` without its scripted model: these tests have a server behind the real one.

use std::{
    ffi::OsString,
    sync::{Arc, Mutex},
};

use bub::testing;
use bub_kernel::{
    Channel, ChannelRouter, Framework, FrameworkBuilder, Inbound, MessageId, Outbound, Plugin,
    Prompt, Result, Sender, SessionId, State, Turn, TurnResult, async_trait, hooks,
};
use bub_settings::{AnySetting, Secret, Section, SettingKey, Settings};
use tempfile::TempDir;

pub(crate) struct AgentFixture {
    pub(crate) framework: Framework,
    pub(crate) dir: TempDir,
}

impl AgentFixture {
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder)
    }

    /// Creates a fixture in which a plugin echoes the prompt.
    pub(crate) fn echoing() -> Self {
        Self::with(|builder| builder.plugin("echo", Echo))
    }

    /// Creates an echoing fixture with another plugin.
    pub(crate) fn echoing_with(name: &str, plugin: impl Plugin) -> Self {
        Self::with(|builder| builder.plugin("echo", Echo).plugin(name, plugin))
    }

    pub(crate) fn with_plugin(name: &str, plugin: impl Plugin) -> Self {
        Self::with(|builder| builder.plugin(name, plugin))
    }

    /// Creates a fixture with additional plugins.
    pub(crate) fn with_plugins(add: impl FnOnce(FrameworkBuilder) -> FrameworkBuilder) -> Self {
        Self::with(add)
    }

    /// Creates a fixture whose model is served at `url`.
    pub(crate) fn asking(url: &str) -> Self {
        Self::make(&model_at(url), |builder| builder)
    }

    pub(crate) fn asking_with(url: &str, name: &str, plugin: impl Plugin) -> Self {
        Self::make(&model_at(url), |builder| builder.plugin(name, plugin))
    }

    /// Creates a fixture with a model at `url`, additional variables and additional plugins.
    pub(crate) fn asking_so(
        url: &str,
        variables: &[(&'static str, &str)],
        add: impl FnOnce(FrameworkBuilder) -> FrameworkBuilder,
    ) -> Self {
        let mut all = model_at(url);
        all.extend(
            variables
                .iter()
                .map(|(name, value)| (*name, (*value).to_owned())),
        );
        Self::make(&all, add)
    }

    /// Runs a turn for the user at the terminal.
    pub(crate) async fn own_turn(&self, message: impl Into<Inbound>) -> Result<TurnResult> {
        self.turn(owned(message)).await
    }

    fn with(add: impl FnOnce(FrameworkBuilder) -> FrameworkBuilder) -> Self {
        Self::make(&[], add)
    }

    fn make(
        variables: &[(&str, String)],
        add: impl FnOnce(FrameworkBuilder) -> FrameworkBuilder,
    ) -> Self {
        let dir = TempDir::new().unwrap();
        let test = testing::framework(dir.path())
            .settings(Section::new("telegram", TELEGRAM))
            .env("BUB_TELEGRAM_TOKEN", "correct-horse-battery");
        let variables = variables.iter();
        let test = variables.fold(test, |test, (name, value)| test.env(name, value));
        Self {
            framework: add(test.builder().unwrap()).build(),
            dir,
        }
    }

    pub(crate) async fn turn(&self, message: impl Into<Inbound>) -> Result<TurnResult> {
        self.framework.process_inbound(message).await
    }

    /// Returns a turn outside of the pipeline, after `load_state`.
    pub(crate) async fn loaded(&self, message: impl Into<Inbound>) -> Turn {
        let turn = Turn::detached(&self.framework, message, State::new());
        self.framework.load_state(&turn).await.unwrap();
        turn
    }
}

/// Returns a message of the user at the terminal.
pub(crate) fn owned(message: impl Into<Inbound>) -> Inbound {
    message.into().with_sender(Sender::terminal())
}

fn model_at(url: &str) -> Vec<(&'static str, String)> {
    vec![
        ("BUB_MODEL", "llamacpp:test".to_owned()),
        ("BUB_LLAMACPP_API_BASE", format!("{url}/v1")),
    ]
}

static TOKEN: SettingKey<Option<Secret>> = SettingKey::new("telegram.token", None, "A secret.");
static PROXY: SettingKey<Option<String>> = SettingKey::new("telegram.proxy", None, "An address.");
static ALLOW_USERS: SettingKey<Option<Vec<String>>> =
    SettingKey::new("telegram.allow_users", None, "A policy.");
static TELEGRAM: &[&dyn AnySetting] = &[&TOKEN, &PROXY, &ALLOW_USERS];

/// Loads settings from these variables only.
pub(crate) fn load_settings<N: Into<String>, V: Into<OsString>>(
    variables: impl IntoIterator<Item = (N, V)>,
) -> Settings {
    let sample = Section::new("telegram", TELEGRAM);
    bub_settings::testing::load(variables, bub::core_sections().chain([sample]))
}

pub(crate) struct Echo;

#[hooks(crate = bub_kernel)]
impl Echo {
    fn run_model(&self, prompt: &Prompt) -> String {
        prompt.text()
    }
}

/// Records dispatched replies.
#[derive(Default)]
pub(crate) struct OutboxPlugin(pub(crate) Mutex<Vec<Outbound>>);

#[async_trait]
impl ChannelRouter for OutboxPlugin {
    fn channel(&self, _name: &str) -> Option<Arc<dyn Channel>> {
        None
    }

    async fn dispatch(&self, reply: Outbound) -> Result<bool> {
        self.0.lock().unwrap().push(reply);
        Ok(true)
    }

    async fn quit_session(
        &self,
        _session_id: &SessionId,
        _except: Option<&MessageId>,
    ) -> Result<()> {
        Ok(())
    }
}
