//! The cost of hook calls in time and allocations.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing benchmark should panic"
)]

use std::{future::Future, sync::Arc};

use bub_kernel::{
    Channel, ChannelRouter, Envelope, Framework, Inbound, MessageId, ModelStream, Outbound, Prompt,
    Result, SessionId, State, StreamEvent, Turn, async_trait, hooks,
    hooks::{
        args,
        point::{DispatchOutbound, ResolveSession},
    },
};
use divan::{AllocProfiler, Bencher, black_box, counter::ItemsCount};
use futures_util::{FutureExt, StreamExt};
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOC: AllocProfiler = AllocProfiler::system();

fn main() {
    // Do not print panics that the benchmarks catch.
    std::panic::set_hook(Box::new(|_| {}));
    divan::main();
}

struct SyncPlugin;

#[hooks(crate = bub_kernel)]
impl SyncPlugin {
    fn dispatch_outbound(&self, message: &Envelope) -> bool {
        black_box(message).fields().len() == 1
    }
}

struct AsyncPlugin;

#[hooks(crate = bub_kernel)]
impl AsyncPlugin {
    async fn dispatch_outbound(&self, message: &Envelope) -> bool {
        black_box(message).fields().len() == 1
    }
}

struct NamedPlugin;

#[hooks(crate = bub_kernel)]
impl NamedPlugin {
    fn resolve_session(&self) -> Option<String> {
        Some(String::new())
    }
}

struct SilentPlugin;

#[hooks(crate = bub_kernel)]
impl SilentPlugin {
    fn resolve_session(&self) -> Option<String> {
        None
    }
}

struct EchoPlugin;

#[hooks(crate = bub_kernel)]
impl EchoPlugin {
    async fn run_model(&self, prompt: &Prompt) -> Option<String> {
        Some(prompt.text())
    }
}

struct PanickingPlugin;

#[hooks(crate = bub_kernel)]
impl PanickingPlugin {
    fn resolve_session(&self) -> String {
        panic!("bad day")
    }
}

/// Returns a framework with five plugins.
macro_rules! five {
    ($plugin:expr) => {
        Framework::builder()
            .plugin("1", $plugin)
            .plugin("2", $plugin)
            .plugin("3", $plugin)
            .plugin("4", $plugin)
            .plugin("5", $plugin)
            .build()
    };
}

/// Runs a future that is ready at once, without a runtime.
fn run_ready<T>(work: impl Future<Output = T>) -> T {
    work.now_or_never().unwrap()
}

fn broadcast(bencher: Bencher<'_, '_>, framework: &Framework) {
    let message = Envelope::from_text("hi");
    bencher.bench_local(|| {
        let args = args::DispatchOutbound {
            message: black_box(&message),
            turn: None,
        };
        run_ready(framework.hooks().call_all::<DispatchOutbound>(args)).unwrap()
    });
}

#[divan::bench]
fn broadcast_5_sync(bencher: Bencher<'_, '_>) {
    broadcast(bencher, &five!(SyncPlugin));
}

#[divan::bench]
fn broadcast_5_ready_async(bencher: Bencher<'_, '_>) {
    broadcast(bencher, &five!(AsyncPlugin));
}

fn first(bencher: Bencher<'_, '_>, framework: &Framework) {
    let inbound = Inbound::from(Envelope::from_text("hi"));
    bencher.bench_local(|| {
        let args = args::ResolveSession {
            message: black_box(&inbound.message),
            inbound: &inbound,
        };
        run_ready(framework.hooks().call_first::<ResolveSession>(args)).is_ok()
    });
}

#[divan::bench]
fn call_first_of_5(bencher: Bencher<'_, '_>) {
    first(bencher, &five!(NamedPlugin));
}

#[divan::bench]
fn call_first_past_5_without_opinion(bencher: Bencher<'_, '_>) {
    first(bencher, &five!(SilentPlugin));
}

/// Numbers of plugins without a result, next to the plugin that answers.
const PLUGINS: [usize; 5] = [0, 1, 5, 10, 20];

fn with_silent(count: usize) -> Framework {
    let mut builder = Framework::builder()
        .workspace("/project")
        .plugin("echo", EchoPlugin);
    for number in 0..count {
        builder = builder.plugin(number.to_string(), SilentPlugin);
    }
    builder.build()
}

#[divan::bench(args = PLUGINS)]
fn call_first_past(bencher: Bencher<'_, '_>, plugins: usize) {
    first(bencher, &with_silent(plugins));
}

#[divan::bench(args = PLUGINS)]
fn bare_turn_with_silent_plugins(bencher: Bencher<'_, '_>, plugins: usize) {
    let framework = with_silent(plugins);
    bencher
        .with_inputs(|| {
            Envelope::from_text("hi")
                .with("channel", "cli")
                .with("chat_id", "room")
        })
        .bench_local_values(|message| run_ready(framework.process_inbound(message)).unwrap());
}

#[divan::bench]
fn caught_panic(bencher: Bencher<'_, '_>) {
    first(
        bencher,
        &Framework::builder()
            .plugin("panicking", PanickingPlugin)
            .build(),
    );
}

/// Measures a turn with one echo plugin and no builtin. The message is created outside of the measurement.
#[divan::bench]
fn bare_turn(bencher: Bencher<'_, '_>) {
    let framework = Framework::builder()
        .workspace("/project")
        .plugin("echo", EchoPlugin)
        .build();
    bencher
        .counter(ItemsCount::new(1_usize))
        .with_inputs(|| {
            Envelope::from_text("hi")
                .with("channel", "cli")
                .with("chat_id", "room")
        })
        .bench_local_values(|message| run_ready(framework.process_inbound(message)).unwrap());
}

/// Measures turns in a runtime, one after the other, including the creation of their messages.
#[divan::bench]
fn bare_turn_with_its_message_in_a_runtime(bencher: Bencher<'_, '_>) {
    const TURNS: usize = 1_000;
    let framework = Framework::builder()
        .workspace("/project")
        .plugin("echo", EchoPlugin)
        .build();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    bencher.counter(ItemsCount::new(TURNS)).bench_local(|| {
        runtime.block_on(async {
            for _ in 0..TURNS {
                let message = Envelope::from_text("hi")
                    .with("channel", "cli")
                    .with("chat_id", "room");
                black_box(framework.process_inbound(message).await.unwrap());
            }
        });
    });
}

struct CliChannel;

#[async_trait]
impl Channel for CliChannel {
    fn name(&self) -> &'static str {
        "cli"
    }

    async fn start(&self, _stop: CancellationToken) -> Result<()> {
        Ok(())
    }

    async fn stop(&self) -> Result<()> {
        Ok(())
    }

    async fn send(&self, _: &Outbound) -> Result<()> {
        Ok(())
    }
}

struct CliRouter(Arc<CliChannel>);

#[async_trait]
impl ChannelRouter for CliRouter {
    fn channel(&self, _name: &str) -> Option<Arc<dyn Channel>> {
        Some(Arc::clone(&self.0) as Arc<dyn Channel>)
    }

    async fn quit_session(&self, _: &SessionId, _: Option<&MessageId>) -> Result<()> {
        Ok(())
    }
}

/// Measures a thousand events that the default `wrap_stream` passes to `on_event`.
#[divan::bench]
fn stream_event_through_wrap_stream(bencher: Bencher<'_, '_>) {
    const EVENTS: usize = 1_000;
    let router = CliRouter(Arc::new(CliChannel));
    let message = Envelope::from_text("hi")
        .with("channel", "cli")
        .with("chat_id", "room")
        .with("session_id", "s");
    let turn = Turn::detached(&Framework::builder().build(), message, State::new());
    bencher
        .counter(ItemsCount::new(EVENTS))
        .with_inputs(|| {
            let events: Vec<_> = (0..EVENTS)
                .map(|_| StreamEvent::Text("word".into()))
                .collect();
            router.wrap_stream(&turn, ModelStream::from_events(events))
        })
        .bench_local_values(|mut stream| {
            run_ready(async {
                while let Some(event) = stream.next().await {
                    drop(black_box(event));
                }
            });
        });
}
