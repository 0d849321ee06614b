//! Tests for plugins, channels and stores. The feature `testing` enables this module.
//!
//! [`turn`] runs one turn through the complete pipeline and the agent, with a model that follows a script. It needs no
//! network and no configuration: home and workspace are temporary directories.
//!
//! ```
//! use bub::{prelude::*, testing};
//! use serde_json::json;
//!
//! /// Count the words of a text.
//! #[tool(read_only)]
//! async fn count_words(
//!     /// The text.
//!     text: String,
//! ) -> usize {
//!     text.split_whitespace().count()
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let turn = testing::turn("How many words has 'to be or not'?")
//!     .tool(count_words())
//!     .model_calls("count_words", json!({"text": "to be or not"}))
//!     .model_says("It has four words.")
//!     .run()
//!     .await?;
//! assert_eq!(turn.tool_results(), ["4"]);
//! assert_eq!(turn.reply(), "It has four words.");
//! # Ok::<(), Error>(())
//! # }).unwrap();
//! ```
//!
//! [`gateway`] runs the channels and services of plugins, from the message of a user to the reply, and answers requests to
//! their HTTP routes. [`framework`] has neither a turn nor a gateway, for tests that call hooks themselves.
//!
//! [`check_channel`] and [`check_store`] test an implementation of [`Channel`](crate::Channel) or
//! [`TapeStore`](crate::TapeStore) against the guarantees of the trait.
//!
//! The time of a test is the clock of tokio: with `#[tokio::test(start_paused = true)]`, timeouts and delays pass at
//! once. [`ManualClock`] moves the clock by hand.

mod channel;
mod clock;
mod framework;
mod gateway;
mod routes;
mod script;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bub_kernel::{
    ChannelMessage, Error, Framework, FrameworkBuilder, Inbound, PluginContext, PluginState,
    PluginStatus, Result, Sender, State, Tool, Turn, TurnResult,
};
use bub_settings::Section;
pub use bub_tape::testing::check_store;
use bub_tape::{Entry, EntryKind, EntryRange};
use serde_json::Value;
use tempfile::TempDir;

use self::script::{Answer, ModelScript};
pub use self::{
    channel::check_channel,
    clock::ManualClock,
    framework::{FrameworkTest, framework},
    gateway::{GatewayTest, TestedGateway, gateway},
    script::{ModelAnswers, ModelRequest},
};
use crate::PluginConstructor;

/// The channel and chat of the test message.
const CHANNEL: &str = "test";
const SESSION: &str = "test:local";

/// Starts the description of a turn for a message of the owner.
pub fn turn(message: impl Into<String>) -> TurnTest {
    TurnTest {
        message: ChannelMessage::new(SESSION, CHANNEL, message.into()).chat_id("local"),
        sender: Sender::terminal(),
        answers: Vec::new(),
        source: RuntimeSource::New(RuntimeOptions::default()),
    }
}

/// The description of a turn: its message, the plugins, and the answers of the model. [`turn`] creates it.
#[must_use = "the turn runs only if `run` is called"]
pub struct TurnTest {
    message: ChannelMessage,
    sender: Sender,
    answers: Vec<Answer>,
    source: RuntimeSource,
}

enum RuntimeSource {
    New(RuntimeOptions),
    Existing(Arc<TestRuntime>),
}

#[derive(Default)]
struct RuntimeOptions {
    add_plugins: Vec<Box<dyn FnOnce(FrameworkBuilder) -> FrameworkBuilder>>,
    sections: Vec<Section>,
    settings: Vec<(String, Value)>,
    model: Option<String>,
}

/// A framework in temporary directories, whose model follows a script.
struct TestRuntime {
    framework: Framework,
    script: Arc<ModelScript>,
    directory: TempDir,
    /// The number of entries on the tape after the last turn.
    entry_count: AtomicUsize,
}

impl TurnTest {
    /// Adds a plugin; see [`App::plugin`](crate::App::plugin).
    pub fn plugin<A, C: PluginConstructor<A>>(self, name: &'static str, plugin: C) -> Self {
        self.configure(|options| options.add_plugin(name, plugin))
    }

    /// Adds a tool; see [`App::tool`](crate::App::tool).
    pub fn tool(self, tool: impl Tool) -> Self {
        self.configure(|options| {
            let add = move |builder: FrameworkBuilder| builder.tool(tool);
            options.add_plugins.push(Box::new(add));
        })
    }

    /// Declares the settings of a plugin; see [`App::settings`](crate::App::settings).
    pub fn settings(self, section: Section) -> Self {
        self.configure(|options| options.sections.push(section))
    }

    /// Sets a setting in the config file: `.setting("greeter.word", "Salve")`.
    pub fn setting(self, key: &str, value: impl Into<Value>) -> Self {
        self.configure(|options| options.settings.push((key.to_owned(), value.into())))
    }

    /// Uses this model in place of the script, such as the recorded tape `replay:tests/notes.jsonl`. A plugin of the
    /// test must answer its calls.
    pub fn model(self, model: impl Into<String>) -> Self {
        self.configure(|options| options.model = Some(model.into()))
    }

    /// Sets the sender of the message. The default is the owner.
    pub fn sender(mut self, sender: Sender) -> Self {
        self.sender = sender;
        self
    }

    /// Changes the message, for example to add media: `.message(|message| message.media(item))`.
    pub fn message(mut self, change: impl FnOnce(ChannelMessage) -> ChannelMessage) -> Self {
        self.message = change(self.message);
        self
    }

    /// Adds answers of the model: one text, or a list with one text for each model call.
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

    /// Runs the turn.
    ///
    /// # Errors
    ///
    /// Fails if the turn fails, if the number of model calls differs from the number of scripted answers, or if the script
    /// calls a tool that the model does not have.
    pub async fn run(self) -> Result<TestedTurn> {
        let runtime = match self.source {
            RuntimeSource::New(options) => Arc::new(options.build()?),
            RuntimeSource::Existing(runtime) => runtime,
        };
        runtime.script.start(self.answers);
        let inbound = Inbound::new(self.message).with_sender(self.sender);
        let framework = &runtime.framework;
        let (turn, result, entries) = framework
            .run_scoped(async {
                let (turn, result) = framework.process_turn(inbound).await;
                let entries = turn.tape().tape().entries(EntryRange::ALL).await;
                let entries = entries.map_err(|error| Error::config(error.to_string()))?;
                Ok((turn, result, entries))
            })
            .await?;
        let requests = runtime.script.finish()?;
        let earlier_entries = runtime.entry_count.swap(entries.len(), Ordering::Relaxed);
        Ok(TestedTurn {
            result: result?,
            turn,
            entries,
            earlier_entries,
            requests,
            runtime,
        })
    }

    fn configure(mut self, change: impl FnOnce(&mut RuntimeOptions)) -> Self {
        if let RuntimeSource::New(options) = &mut self.source {
            change(options);
        }
        self
    }
}

impl RuntimeOptions {
    fn add_plugin<A, C: PluginConstructor<A>>(&mut self, name: &'static str, plugin: C) {
        self.sections.extend(C::section());
        let make = |context: &PluginContext<'_>| plugin.create(context);
        let add = move |builder: FrameworkBuilder| builder.plugin_with(name, make);
        self.add_plugins.push(Box::new(add));
    }

    fn build(self) -> Result<TestRuntime> {
        let directory = TempDir::new()?;
        let script = Arc::new(ModelScript::default());
        let test = framework(directory.path()).shared_model(script.model_override());
        let test = match self.model {
            Some(model) => test.env("BUB_MODEL", model),
            None => test,
        };
        let test = self
            .sections
            .into_iter()
            .fold(test, FrameworkTest::settings);
        let set = |test: FrameworkTest, (key, value): (String, Value)| test.setting(&key, value);
        let test = self.settings.into_iter().fold(test, set);
        let settings = test.load_settings()?;
        // A mistyped key must not make a test pass.
        if let Some(warning) = settings.warnings().first() {
            return Err(Error::config(warning.to_string()));
        }
        let builder = test.builder_with(settings)?;
        let add_plugins = self.add_plugins.into_iter();
        let framework = add_plugins
            .fold(builder, |builder, add| add(builder))
            .build();
        for PluginStatus { name, state, .. } in framework.plugins() {
            if let PluginState::Failed(reason) = state {
                let message = format!("cannot create plugin `{name}`: {reason}");
                return Err(Error::config(message));
            }
        }
        Ok(TestRuntime {
            framework,
            script,
            directory,
            entry_count: AtomicUsize::new(0),
        })
    }
}

/// A turn that has run, with its replies, its model calls and its tape.
pub struct TestedTurn {
    result: TurnResult,
    turn: Turn,
    entries: Vec<Entry>,
    /// The number of entries that earlier turns recorded.
    earlier_entries: usize,
    requests: Vec<ModelRequest>,
    runtime: Arc<TestRuntime>,
}

impl TestedTurn {
    /// Returns the text of the reply. If the turn sent several replies, their texts are joined by newlines.
    pub fn reply(&self) -> String {
        self.replies().join("\n")
    }

    /// Returns the texts of all replies.
    pub fn replies(&self) -> Vec<String> {
        let replies = self.result.outbounds.iter();
        replies.map(|reply| reply.content().into_owned()).collect()
    }

    /// Returns the answer of the model stage.
    pub fn answer(&self) -> &str {
        &self.result.model_output
    }

    /// Returns the prompt that `build_prompt` returned.
    pub fn prompt(&self) -> String {
        self.result.prompt.text()
    }

    /// Returns the requests that the model received, in order.
    pub fn requests(&self) -> &[ModelRequest] {
        &self.requests
    }

    /// Returns the results of the turn's tool calls as the model sees them, in order.
    pub fn tool_results(&self) -> Vec<String> {
        let entries = self.entries().iter();
        let entries = entries.filter(|entry| entry.kind == EntryKind::ToolResult);
        let results = entries.filter_map(|entry| entry.payload.get("results")?.as_array());
        let text = |result: &Value| match result {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        results.flatten().map(text).collect()
    }

    /// Returns the entries that the turn recorded.
    pub fn entries(&self) -> &[Entry] {
        self.entries.get(self.earlier_entries..).unwrap_or_default()
    }

    /// Checks the text of the reply.
    ///
    /// # Panics
    ///
    /// Panics if the reply differs.
    #[track_caller]
    pub fn assert_reply(&self, expected: &str) {
        assert_eq!(self.reply(), expected, "the reply differs");
    }

    /// Checks that the turn recorded these entries in this order. Other entries may be between them. An entry is written
    /// as its kind and text: `message user: …`, `tool_call bash`, `tool_result 4`, `event run`, `anchor handoff`. The text of
    /// a user's message starts with the header of its context. An expected line matches an entry that contains it.
    ///
    /// # Panics
    ///
    /// Panics with all recorded entries if one is missing.
    #[track_caller]
    pub fn assert_recorded<'a>(&self, expected: impl IntoIterator<Item = &'a str>) {
        let lines: Vec<_> = self.entries().iter().map(entry_line).collect();
        let mut left = lines.iter();
        for text in expected {
            assert!(
                left.any(|line| line.contains(text)),
                "`{text}` is not recorded, or not in this order: {lines:#?}"
            );
        }
    }

    /// Returns all entries on the tape of the session, including those of earlier turns.
    pub fn tape(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the state at the end of the turn.
    pub fn state(&self) -> &State {
        &self.result.state
    }

    /// Returns the turn.
    pub fn turn(&self) -> &Turn {
        &self.turn
    }

    /// Returns the workspace of the test, a temporary directory.
    pub fn workspace(&self) -> &Path {
        self.runtime.framework.workspace()
    }

    /// Returns the home of the test, a temporary directory.
    pub fn home(&self) -> std::path::PathBuf {
        self.runtime.directory.path().join("home")
    }

    /// Starts the description of the next turn in the same session, with the same plugins and settings.
    pub fn then(&self, message: impl Into<String>) -> TurnTest {
        TurnTest {
            source: RuntimeSource::Existing(Arc::clone(&self.runtime)),
            ..turn(message)
        }
    }
}

/// Writes an entry as its kind and text.
fn entry_line(entry: &Entry) -> String {
    let text = |value: Option<&Value>| match value {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    let payload = &entry.payload;
    let list = |key: &str, part: &str| {
        let items = payload.get(key).and_then(Value::as_array);
        let items = items.into_iter().flatten();
        let items = items.map(|item| text(item.pointer(part)));
        items.collect::<Vec<_>>().join(", ")
    };
    let detail = match entry.kind {
        EntryKind::Message => format!(
            "{}: {}",
            text(payload.get("role")),
            text(payload.get("content"))
        ),
        EntryKind::ToolCall => list("calls", "/function/name"),
        EntryKind::ToolResult => list("results", ""),
        _ => text(payload.get("name").or(payload.get("content"))),
    };
    format!("{} {detail}", entry.kind)
}

#[cfg(test)]
mod tests {
    use bub_kernel::{
        CancellationToken, Channel, ErrorKind, HttpBody, HttpRoute, Outbound, Role, RouteAccess,
        async_trait,
        http::{Method, Request},
    };

    use super::*;

    // A test must not pass because of a mistake in its script or its settings.
    #[tokio::test]
    async fn a_wrong_script_or_setting_fails_the_test() {
        let call = turn("hi").model_calls("no.tool", Value::Null);
        for (test, expected) in [
            (turn("hi"), "the script has 0 answers"),
            (
                turn("hi").model_says(["a", "b"]),
                "the script has 2 answers",
            ),
            (call.model_says("b"), "calls the tool `no.tool`"),
            (
                turn("hi").setting("max_stpes", 3).model_says("a"),
                "max_stpes",
            ),
        ] {
            let error = test.run().await.err().map(|error| error.to_string());
            assert!(
                error
                    .as_deref()
                    .is_some_and(|error| error.contains(expected)),
                "{expected}: {error:?}"
            );
        }
    }

    #[tokio::test]
    async fn what_a_turn_recorded_can_be_checked_in_order() {
        let arguments = serde_json::json!({"command": "echo one"});
        let turn = turn("count").model_calls("bash", arguments);
        let turn = turn.model_says("done").run().await.unwrap();
        turn.assert_reply("done");
        turn.assert_recorded([
            "message user: ",
            "tool_call bash",
            "tool_result one",
            "message assistant: done",
            "event run",
        ]);
        let wrong =
            std::panic::AssertUnwindSafe(|| turn.assert_recorded(["assistant: done", "tool_call"]));
        std::panic::catch_unwind(wrong).unwrap_err();
    }

    #[tokio::test]
    async fn a_gateway_runs_turns_in_order_and_reports_a_wrong_script() {
        let gateway = gateway().model_says(["one", "two"]).start().await.unwrap();
        gateway.send("first").await.unwrap();
        gateway.send("second").await.unwrap();
        assert_eq!(gateway.replies(2).await.unwrap(), ["one", "two"]);
        let requests = gateway.stop().await.unwrap();
        assert!(requests[1].last_message().ends_with("second"));
        let gateway = super::gateway().model_says("unused").start().await.unwrap();
        assert!(gateway.stop().await.is_err());
    }

    /// A channel whose replies always fail.
    struct DeafChannel;

    #[async_trait]
    impl Channel for DeafChannel {
        fn name(&self) -> &'static str {
            "deaf"
        }

        async fn start(&self, _stop: CancellationToken) -> Result<()> {
            Ok(())
        }

        async fn send(&self, _reply: &Outbound) -> Result<()> {
            Err(Error::new(ErrorKind::Temporary, "line is busy"))
        }
    }

    struct Deaf;

    #[bub_macros::hooks(crate = bub_kernel)]
    impl Deaf {
        fn provide_channels(&self) -> Vec<Arc<dyn Channel>> {
            vec![Arc::new(DeafChannel)]
        }

        fn provide_routes(&self) -> Vec<HttpRoute> {
            let fail = |kind: ErrorKind| move |_| async move { Err(Error::new(kind, "no")) };
            let owner = RouteAccess::Role(Role::Owner);
            vec![
                HttpRoute::new(
                    Method::GET,
                    "/busy",
                    RouteAccess::Public,
                    fail(ErrorKind::Temporary),
                ),
                HttpRoute::new(Method::PUT, "/mine/{id}", owner, fail(ErrorKind::NotFound)),
                HttpRoute::prefix("/ui", RouteAccess::Public, fail(ErrorKind::InvalidInput)),
            ]
        }
    }

    // What a channel could not send, and what the routes of a plugin answer.
    #[tokio::test(start_paused = true)]
    async fn failed_replies_and_routes_are_visible() {
        let message = ChannelMessage::new("deaf:1", "deaf", "hi").chat_id("1");
        let gateway = gateway().plugin("deaf", Deaf).model_says("Hello.");
        let gateway = gateway.start().await.unwrap();
        let handler = gateway.message_handler().unwrap();
        handler(Inbound::new(message).with_sender(Sender::terminal()))
            .await
            .unwrap();
        let failed = gateway.failed_replies(1).await.unwrap();
        assert_eq!(failed, ["deaf: Hello.: line is busy"]);

        for (method, path, role, status) in [
            ("GET", "/busy", None, 503),
            ("HEAD", "/busy", None, 503),
            ("POST", "/busy", None, 405),
            ("PUT", "/mine/1", None, 401),
            ("PUT", "/mine/1", Some(Role::Member), 403),
            ("PUT", "/mine/1", Some(Role::Owner), 404),
            ("GET", "/mine/1/2", None, 404),
            ("DELETE", "/ui/a/b", None, 400),
            ("GET", "/uix", None, 404),
        ] {
            let request = Request::builder().method(method).uri(path);
            let request = request.body(HttpBody::default()).unwrap();
            let response = gateway.request(role, request).await.unwrap();
            assert_eq!(response.status(), status, "{method} {path}");
        }
        gateway.stop().await.unwrap();
    }

    #[tokio::test]
    async fn each_turn_has_its_own_results() {
        let command = |text: &str| serde_json::json!({"command": format!("echo {text}")});
        let first = turn("hi")
            .model_calls("bash", command("one"))
            .model_says("1");
        let first = first.run().await.unwrap();
        let second = first.then("more").model_calls("bash", command("two"));
        let second = second.model_says("2").run().await.unwrap();
        assert_eq!((first.reply(), second.reply()), ("1".into(), "2".into()));
        let results = second.tool_results();
        assert!(
            results.len() == 1 && results[0].contains("two"),
            "{results:?}"
        );
        assert!(second.tape().len() > second.entries().len());
    }
}
