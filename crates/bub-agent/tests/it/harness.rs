//! A framework with the builtin plugin, in a fresh home and workspace.

use std::sync::{Arc, Mutex};

use bub_agent::Builtin;
use bub_kernel::{
    BoxFuture, Channel, ChannelRouter, Envelope, Framework, FrameworkBuilder, Plugin, Prompt, Result,
    TurnOptions, TurnResult, hooks,
};
use bub_settings::{Environment, Loader, Settings};
use tempfile::TempDir;

pub(crate) struct World {
    pub(crate) framework: Framework,
    pub(crate) dir: TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder)
    }

    /// A world in which a plugin answers with what it was asked.
    pub(crate) fn echoing() -> Self {
        Self::with(|builder| builder.plugin("echo", Echo))
    }

    pub(crate) fn with_plugin(name: &str, plugin: impl Plugin) -> Self {
        Self::with(|builder| builder.plugin(name, plugin))
    }

    fn with(add: impl FnOnce(FrameworkBuilder) -> FrameworkBuilder) -> Self {
        let dir = TempDir::new().unwrap();
        std::fs::create_dir(dir.path().join("workspace")).unwrap();
        let settings = settings(&dir);
        let builder = Framework::builder()
            .workspace(dir.path().join("workspace"))
            .service(Arc::new(settings))
            .plugin_with("builtin", Builtin::new);
        Self { framework: add(builder).build(), dir }
    }

    pub(crate) async fn turn(&self, message: impl Into<Envelope>) -> Result<TurnResult> {
        self.framework.process_inbound(message.into(), TurnOptions::default()).await
    }
}

fn settings(dir: &TempDir) -> Settings {
    let env = Environment::from_pairs([
        ("BUB_HOME", dir.path().join("home").into_os_string()),
        ("HOME", dir.path().to_owned().into_os_string()),
        ("BUB_TELEGRAM_TOKEN", "correct-horse-battery".into()),
        // Nobody is asked but the plugins of the test.
        ("BUB_LOCAL_MODELS", "false".into()),
    ]);
    Loader::new(env).load().unwrap()
}

pub(crate) struct Echo;

#[hooks(crate = bub_kernel)]
impl Echo {
    fn run_model(&self, prompt: &Prompt) -> String {
        prompt.text()
    }
}

/// Keeps what was dispatched.
#[derive(Default)]
pub(crate) struct Outbox(pub(crate) Mutex<Vec<Envelope>>);

impl ChannelRouter for Outbox {
    fn channel(&self, _name: &str) -> Option<Arc<dyn Channel>> {
        None
    }

    fn dispatch<'a>(&'a self, message: &'a Envelope) -> BoxFuture<'a, Result<bool>> {
        self.0.lock().unwrap().push(message.clone());
        Box::pin(std::future::ready(Ok(true)))
    }

    fn quit<'a>(&'a self, _session_id: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
