//! The cost of a complete turn with the builtin plugin.
#![allow(
    clippy::expect_used,
    reason = "a bench that cannot start has nothing to measure"
)]

use std::sync::Arc;

use bub_agent::{BuiltinAgent, BuiltinOptions, ModelOverride};
use bub_kernel::{
    BoxError, ChannelMessage, Framework, Inbound, Prompt, RunningScope, Sender, hooks,
};
use bub_model::{FinishReason, ModelEvent, ToolCallDelta};
use bub_settings::{Environment, Loader};
use bub_tape::{Entry, Tape, TapeName};
use divan::{AllocProfiler, Bencher, counter::ItemsCount};
use tokio::runtime::Runtime;

#[global_allocator]
static ALLOC: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

struct Echo;

#[hooks(crate = bub_kernel)]
impl Echo {
    fn run_model(&self, prompt: &Prompt) -> String {
        prompt.text()
    }
}

/// An echo turn without a running scope: every builtin stage, no tape.
#[divan::bench]
fn echo_turn_with_builtin(bencher: Bencher<'_, '_>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let home = std::env::temp_dir().join("bub-bench-no-such-home");
    let settings = Loader::new(Environment::from_pairs([(
        "BUB_HOME",
        home.into_os_string(),
    )]))
    .sections(bub_agent::settings::sections())
    .sections(bub_model::settings::sections())
    .sections(bub_kernel::settings::sections())
    .load()
    .expect("defaults");
    let framework = Framework::builder()
        .settings(Arc::new(settings))
        .plugin_with("builtin", |context| {
            Ok::<_, BoxError>(BuiltinAgent::new(context, BuiltinOptions::default()))
        })
        .plugin("echo", Echo)
        .build();
    let message = Inbound::from(ChannelMessage::new("s", "lab", "hi").chat_id("7"));
    bencher
        .with_inputs(|| message.clone())
        .bench_values(|message| {
            runtime
                .block_on(framework.process_inbound(message))
                .expect("a turn")
        });
}

/// A framework with a new home. Its model requests `calls` tool calls, one per step, and then answers.
struct TurnFixture {
    framework: Framework,
    runtime: Runtime,
    _running: RunningScope,
    _home: tempfile::TempDir,
}

impl TurnFixture {
    fn new(durability: &str, calls: usize) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let home = tempfile::tempdir().expect("a home");
        let workspace = home.path().join("workspace");
        std::fs::create_dir(&workspace).expect("a workspace");
        let variables = [
            ("BUB_HOME", home.path().join("home").into_os_string()),
            ("HOME", home.path().to_owned().into_os_string()),
            ("BUB_MODEL", "llamacpp:test".into()),
            ("BUB_TAPE_DURABILITY", durability.into()),
        ];
        let settings = Loader::new(Environment::from_pairs(variables))
            .sections(bub_agent::settings::sections())
            .sections(bub_model::settings::sections())
            .sections(bub_kernel::settings::sections())
            .load()
            .expect("settings");
        let model_override = ModelOverride(Box::new(move |_, request| {
            let done = request
                .messages
                .iter()
                .rev()
                .take_while(|message| !is_prompt(message));
            let done = done.filter(|message| message["role"] == "tool").count();
            if done < calls { call(done) } else { answer() }
        }));
        let options = BuiltinOptions {
            model_override: Some(Arc::new(model_override)),
            ..BuiltinOptions::default()
        };
        let framework = Framework::builder()
            .workspace(workspace)
            .settings(Arc::new(settings))
            .plugin_with("builtin", |context| {
                Ok::<_, BoxError>(BuiltinAgent::new(context, options))
            })
            .build();
        let running = runtime.block_on(framework.open_scope()).expect("a scope");
        Self {
            framework,
            runtime,
            _running: running,
            _home: home,
        }
    }

    fn tape(&self) -> Tape {
        let store = self.framework.tape_store().expect("a store");
        Tape::new(
            store,
            TapeName::for_session(self.framework.workspace_text(), "s"),
        )
    }

    fn turns(&self, bencher: Bencher<'_, '_>) {
        let message = ChannelMessage::new("s", "lab", "hi").chat_id("7");
        let message = Inbound::from(message).with_sender(Sender::terminal());
        bencher
            .counter(ItemsCount::new(1u32))
            .with_inputs(|| message.clone())
            .bench_values(|message| {
                self.runtime.block_on(async {
                    let turn = self.framework.process_inbound(message).await;
                    // Hand off from time to time: measure a turn, not a view of a thousand entries.
                    let turn = turn.expect("a turn");
                    let tape = self.tape();
                    if tape
                        .summary()
                        .await
                        .expect("a summary")
                        .entries_since_last_anchor
                        > 60
                    {
                        tape.handoff("bench", None).await.expect("an anchor");
                    }
                    turn
                })
            });
    }
}

fn is_prompt(message: &serde_json::Value) -> bool {
    message["role"] == "user"
        && message["content"]
            .as_str()
            .is_some_and(|text| text.ends_with("\nhi"))
}

fn answer() -> Vec<ModelEvent> {
    vec![
        ModelEvent::Text("Hello!".to_owned()),
        ModelEvent::Finish(FinishReason::Stop),
    ]
}

fn call(number: usize) -> Vec<ModelEvent> {
    let call = ToolCallDelta {
        index: 0,
        id: Some(format!("call_{number}")),
        name: Some("tape_info".to_owned()),
        arguments: "{}".to_owned(),
    };
    vec![
        ModelEvent::ToolCall(call),
        ModelEvent::Finish(FinishReason::ToolCalls),
    ]
}

/// A complete turn of the agent on a file tape: session, state, prompt, view, model, record, render.
#[divan::bench(args = ["os", "always"])]
fn agent_turn(bencher: Bencher<'_, '_>, durability: &str) {
    TurnFixture::new(durability, 0).turns(bencher);
}

/// A turn with ten tool steps. A tenth of the difference to `agent_turn` is the cost of a step.
#[divan::bench(args = ["os", "always"])]
fn agent_turn_of_ten_tool_steps(bencher: Bencher<'_, '_>, durability: &str) {
    TurnFixture::new(durability, 10).turns(bencher);
}

/// A turn on a tape with a million earlier entries.
#[divan::bench(sample_count = 20)]
fn agent_turn_on_a_million_entries(bencher: Bencher<'_, '_>) {
    let fixture = TurnFixture::new("os", 0);
    fixture.runtime.block_on(async {
        let tape = fixture.tape();
        for _ in 0..1000 {
            let batch = (0..1000)
                .map(|number| Entry::message("user", format!("message {number}")))
                .collect();
            tape.append_all(batch).await.expect("entries");
        }
        tape.handoff("session/start", None)
            .await
            .expect("an anchor");
    });
    fixture.turns(bencher);
}
