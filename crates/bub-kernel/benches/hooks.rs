//! What calling hooks costs, in time and allocations.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a benchmark that fails is meant to stop"
)]

use std::{future::Future, sync::Arc};

use bub_kernel::{
    BoxFuture, Channel, ChannelRouter, Envelope, Framework, Inbound, MessageId, ModelStream,
    Outbound, Prompt, Result, SessionId, State, StreamEvent, Turn, hooks,
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
    // A caught panic is measured, not printed.
    std::panic::set_hook(Box::new(|_| {}));
    divan::main();
}

struct Sync;

#[hooks(crate = bub_kernel)]
impl Sync {
    fn dispatch_outbound(&self, message: &Envelope) -> bool {
        black_box(message).fields().len() == 1
    }
}

struct Ready;

#[hooks(crate = bub_kernel)]
impl Ready {
    async fn dispatch_outbound(&self, message: &Envelope) -> bool {
        black_box(message).fields().len() == 1
    }
}

struct Named;

#[hooks(crate = bub_kernel)]
impl Named {
    fn resolve_session(&self) -> Option<String> {
        Some(String::new())
    }
}

struct Silent;

#[hooks(crate = bub_kernel)]
impl Silent {
    fn resolve_session(&self) -> Option<String> {
        None
    }
}

struct Echo;

#[hooks(crate = bub_kernel)]
impl Echo {
    async fn run_model(&self, prompt: &Prompt) -> Option<String> {
        Some(prompt.text())
    }
}

struct Panicking;

#[hooks(crate = bub_kernel)]
impl Panicking {
    fn resolve_session(&self) -> String {
        panic!("bad day")
    }
}

/// Five plugins.
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

/// Runs a future that never has to wait, without the cost of a runtime.
fn ready<T>(work: impl Future<Output = T>) -> T {
    work.now_or_never().unwrap()
}

fn broadcast(bencher: Bencher<'_, '_>, framework: &Framework) {
    let message = Envelope::text("hi");
    bencher.bench_local(|| {
        let args = args::DispatchOutbound {
            message: black_box(&message),
            turn: None,
        };
        ready(framework.hooks().call_many::<DispatchOutbound>(args)).unwrap()
    });
}

#[divan::bench]
fn broadcast_5_sync(bencher: Bencher<'_, '_>) {
    broadcast(bencher, &five!(Sync));
}

#[divan::bench]
fn broadcast_5_ready_async(bencher: Bencher<'_, '_>) {
    broadcast(bencher, &five!(Ready));
}

fn first(bencher: Bencher<'_, '_>, framework: &Framework) {
    let inbound = Inbound::from(Envelope::text("hi"));
    bencher.bench_local(|| {
        let args = args::ResolveSession {
            message: black_box(&inbound.message),
            inbound: &inbound,
        };
        ready(framework.hooks().call_first::<ResolveSession>(args)).is_ok()
    });
}

#[divan::bench]
fn call_first_of_5(bencher: Bencher<'_, '_>) {
    first(bencher, &five!(Named));
}

#[divan::bench]
fn call_first_past_5_without_opinion(bencher: Bencher<'_, '_>) {
    first(bencher, &five!(Silent));
}

/// Plugins that have no opinion, beside the one that answers.
const PLUGINS: [usize; 5] = [0, 1, 5, 10, 20];

fn with_silent(count: usize) -> Framework {
    let mut builder = Framework::builder()
        .workspace("/project")
        .plugin("echo", Echo);
    for number in 0..count {
        builder = builder.plugin(number.to_string(), Silent);
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
            Envelope::text("hi")
                .with("channel", "cli")
                .with("chat_id", "room")
        })
        .bench_local_values(|message| ready(framework.process_inbound(message)).unwrap());
}

#[divan::bench]
fn caught_panic(bencher: Bencher<'_, '_>) {
    first(
        bencher,
        &Framework::builder().plugin("panicking", Panicking).build(),
    );
}

/// One echo plugin and no builtin; the message is made outside the measurement.
#[divan::bench]
fn bare_turn(bencher: Bencher<'_, '_>) {
    let framework = Framework::builder()
        .workspace("/project")
        .plugin("echo", Echo)
        .build();
    bencher
        .counter(ItemsCount::new(1_usize))
        .with_inputs(|| {
            Envelope::text("hi")
                .with("channel", "cli")
                .with("chat_id", "room")
        })
        .bench_local_values(|message| ready(framework.process_inbound(message)).unwrap());
}

/// The same with the message, inside a runtime, one turn after the other.
#[divan::bench]
fn bare_turn_with_its_message_in_a_runtime(bencher: Bencher<'_, '_>) {
    const TURNS: usize = 1_000;
    let framework = Framework::builder()
        .workspace("/project")
        .plugin("echo", Echo)
        .build();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    bencher.counter(ItemsCount::new(TURNS)).bench_local(|| {
        runtime.block_on(async {
            for _ in 0..TURNS {
                let message = Envelope::text("hi")
                    .with("channel", "cli")
                    .with("chat_id", "room");
                black_box(framework.process_inbound(message).await.unwrap());
            }
        });
    });
}

struct Cli;

impl Channel for Cli {
    fn name(&self) -> &'static str {
        "cli"
    }

    fn start(&self, _stop: CancellationToken) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn stop(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn send<'a>(&'a self, _: &'a Outbound) -> BoxFuture<'a, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

struct ToCli(Arc<Cli>);

impl ChannelRouter for ToCli {
    fn channel(&self, _name: &str) -> Option<Arc<dyn Channel>> {
        Some(Arc::clone(&self.0) as Arc<dyn Channel>)
    }

    fn quit<'a>(&'a self, _: &'a SessionId, _: Option<&'a MessageId>) -> BoxFuture<'a, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A thousand events through the default wrapping, each shown to `on_event`.
#[divan::bench]
fn stream_event_through_wrap_stream(bencher: Bencher<'_, '_>) {
    const EVENTS: usize = 1_000;
    let router = ToCli(Arc::new(Cli));
    let message = Envelope::text("hi")
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
            ready(async {
                while let Some(event) = stream.next().await {
                    drop(black_box(event));
                }
            });
        });
}
