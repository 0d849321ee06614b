//! The cost of a whole turn with the builtin plugin.
#![allow(clippy::expect_used, reason = "a bench that cannot start has nothing to measure")]

use std::sync::Arc;

use bub_agent::Builtin;
use bub_kernel::{ChannelMessage, Envelope, Framework, Prompt, TurnOptions, hooks};
use bub_settings::{Environment, Loader};
use divan::{AllocProfiler, Bencher};

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
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let home = std::env::temp_dir().join("bub-bench-no-such-home");
    let settings =
        Loader::new(Environment::from_pairs([("BUB_HOME", home.into_os_string())])).load().expect("defaults");
    let framework = Framework::builder()
        .service(Arc::new(settings))
        .plugin_with("builtin", Builtin::new)
        .plugin("echo", Echo)
        .build();
    let message: Envelope = ChannelMessage::new("s", "lab", "hi").chat_id("7").into();
    bencher.with_inputs(|| message.clone()).bench_values(|message| {
        runtime.block_on(framework.process_inbound(message, TurnOptions::default())).expect("a turn")
    });
}
