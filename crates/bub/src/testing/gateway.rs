//! A gateway in a test: the channels and services of plugins run, and a model follows a script.

use std::{sync::Arc, time::Duration};

use bub_gateway::{Gateway, GatewayOptions, JournalKind, testing::RunningGateway};
use bub_kernel::{
    Channel, ChannelMessage, Error, ErrorKind, Framework, Inbound, MessageHandler, Result, Sender,
    testing::FakeChannel,
};
use bub_settings::Section;
use serde_json::Value;

use crate::PluginConstructor;

use super::{
    CHANNEL, ModelAnswers, ModelRequest, RuntimeOptions, SESSION, TestRuntime, script::Answer,
};

/// How long [`TestedGateway::replies`] waits.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// How often [`TestedGateway::failed_replies`] looks for a failed reply.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Starts the description of a gateway with the plugins of the test. It has a journal in memory, and a channel `test`
/// with which the test sends messages and reads replies.
///
/// ```
/// # use bub::testing;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let gateway = testing::gateway().model_says("Hello.").start().await?;
/// gateway.send("hi").await?;
/// assert_eq!(gateway.replies(1).await?, ["Hello."]);
/// gateway.stop().await?;
/// # Ok::<(), bub::Error>(())
/// # }).unwrap();
/// ```
pub fn gateway() -> GatewayTest {
    GatewayTest {
        options: RuntimeOptions::default(),
        answers: Vec::new(),
    }
}

/// The description of a gateway. [`gateway`] creates it.
#[must_use = "the gateway runs only if `start` is called"]
pub struct GatewayTest {
    options: RuntimeOptions,
    answers: Vec<Answer>,
}

impl GatewayTest {
    /// Adds a plugin; see [`App::plugin`](crate::App::plugin).
    pub fn plugin<A, C: PluginConstructor<A>>(mut self, name: &'static str, plugin: C) -> Self {
        self.options.add_plugin(name, plugin);
        self
    }

    /// Declares the settings of a plugin; see [`App::settings`](crate::App::settings).
    pub fn settings(mut self, section: Section) -> Self {
        self.options.sections.push(section);
        self
    }

    /// Sets a setting in the config file: `.setting("greeter.word", "Salve")`.
    pub fn setting(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.options.settings.push((key.to_owned(), value.into()));
        self
    }

    /// Adds answers of the model, for all turns in order.
    pub fn model_says(mut self, answers: impl ModelAnswers) -> Self {
        let texts = answers.into_answers().into_iter();
        self.answers.extend(texts.map(Answer::Text));
        self
    }

    /// Adds an answer in which the model calls a tool. `tool` is the name with dots, such as `fs.read`.
    ///
    /// The model does not have a deferred tool until a call of `tool.describe` with `{"names": ["…"]}` has loaded it.
    pub fn model_calls(mut self, tool: impl Into<String>, arguments: Value) -> Self {
        self.answers.push(Answer::Call(tool.into(), arguments));
        self
    }

    /// Starts the gateway with all enabled channels and all services. Returns when the channels have started.
    ///
    /// # Errors
    ///
    /// Fails if a plugin cannot be created, or if the settings of a channel are invalid.
    pub async fn start(self) -> Result<TestedGateway> {
        let channel = Arc::new(FakeChannel::new(CHANNEL));
        let this = self.plugin(CHANNEL, TestChannel(Arc::clone(&channel)));
        let runtime = this.options.build()?;
        runtime.script.start(this.answers);
        let framework = runtime.framework.clone();
        let options = GatewayOptions {
            journal: JournalKind::Memory,
            ..GatewayOptions::new(framework.settings(), CHANNEL)
        };
        let scope = framework.open_scope().await?;
        let gateway = Gateway::open(&framework, options, &["all".to_owned()])?;
        gateway.validate_settings()?;
        let running = RunningGateway::run(gateway, scope).await;
        Ok(TestedGateway {
            runtime,
            channel,
            running,
        })
    }
}

/// A running gateway. [`GatewayTest::start`] creates it.
pub struct TestedGateway {
    runtime: TestRuntime,
    channel: Arc<FakeChannel>,
    running: RunningGateway,
}

impl TestedGateway {
    /// Returns the framework.
    pub fn framework(&self) -> &Framework {
        &self.runtime.framework
    }

    /// Sends a message of the owner through the channel `test`. Returns when the gateway has accepted it.
    pub async fn send(&self, text: &str) -> Result<()> {
        let message = ChannelMessage::new(SESSION, CHANNEL, text).chat_id("local");
        let inbound = Inbound::new(message).with_sender(Sender::terminal());
        self.message_handler()?(inbound).await
    }

    /// Returns the handler to which channels and routes pass their messages.
    pub(super) fn message_handler(&self) -> Result<MessageHandler> {
        let handler = self.channel.handler.get().cloned();
        handler.ok_or_else(|| Error::config("the gateway has no channel `test`"))
    }

    /// Waits for `count` replies in the channel `test` and returns the texts of all replies so far.
    ///
    /// # Errors
    ///
    /// Fails after ten seconds.
    pub async fn replies(&self, count: usize) -> Result<Vec<String>> {
        let mut sent = self.channel.sent.subscribe();
        let enough = sent.wait_for(|sent| sent.len() >= count);
        let is_in_time = tokio::time::timeout(REPLY_TIMEOUT, enough).await.is_ok();
        let replies = self.channel.contents();
        if is_in_time {
            return Ok(replies);
        }
        let failed = self.find_failed_replies();
        let text = format!("fewer than {count} replies: {replies:?}; failed: {failed:?}");
        Err(Error::new(ErrorKind::Temporary, text))
    }

    /// Waits until channels of plugins have failed to send `count` replies. Returns all failed replies, each as
    /// `channel: text: error`. The gateway retries them; a reply is in the list until an attempt succeeds.
    ///
    /// # Errors
    ///
    /// Fails after ten seconds.
    pub async fn failed_replies(&self, count: usize) -> Result<Vec<String>> {
        let failed = async {
            loop {
                let failed = self.find_failed_replies();
                if failed.len() >= count {
                    return failed;
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        let failed = tokio::time::timeout(REPLY_TIMEOUT, failed).await;
        failed.map_err(|_| {
            let text = format!(
                "fewer than {count} failed replies: {:?}",
                self.find_failed_replies()
            );
            Error::new(ErrorKind::Temporary, text)
        })
    }

    fn find_failed_replies(&self) -> Vec<String> {
        let failed = self.running.handle().failed_replies().into_iter();
        failed
            .map(|(channel, text, error)| format!("{channel}: {text}: {error}"))
            .collect()
    }

    /// Stops the gateway and returns the requests that the model received.
    ///
    /// # Errors
    ///
    /// Fails if the gateway fails, or if the number of model calls differs from the number of scripted answers.
    pub async fn stop(self) -> Result<Vec<ModelRequest>> {
        self.running.stop().await?;
        self.runtime.script.finish()
    }
}

/// The plugin with the channel `test`.
struct TestChannel(Arc<FakeChannel>);

#[bub_macros::hooks(crate = bub_kernel)]
impl TestChannel {
    fn provide_channels(&self, message_handler: &MessageHandler) -> Vec<Arc<dyn Channel>> {
        vec![self.0.open(message_handler)]
    }
}
