//! Measures the load of a gateway: messages per second, latency and memory. Each case runs in its own process.
//!
//! `cargo bench -p bub-cli --bench load [-- CASE…]`, cases:
//!
//! * `echo`, `echo-always`: an echo model, a channel in the same process, the real journal;
//! * `loop`: like `echo`, with 1,000 clients that each wait for an answer before they send the next message;
//! * `agent`: the agent with file tapes and a model in the same process;
//! * `served`: the agent with the scripted model server over loopback, which runs in a thread of this process.
#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::indexing_slicing,
    missing_docs,
    reason = "a bench"
)]

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bub_agent::{BuiltinOptions, ModelOverride};
use bub_gateway::{
    GatewayOptions, JournalKind,
    testing::{self, RunningGateway},
};
use bub_kernel::{
    BoxError, CancellationToken, Channel, ChannelMessage, Envelope, Framework, Inbound,
    MessageHandler, Outbound, Prompt, Result, Role, Sender, Turn, async_trait, hooks,
};
use bub_model::{FinishReason, ModelEvent};
use bub_settings::{Environment, Loader};
use bub_tape::Durability;
use bub_testkit::{
    bench_output::{cpu_time, print_figure},
    model::{ModelServer, Reply},
};
use serde_json::Value;
use tokio::sync::{Notify, oneshot};

// The allocator of the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CASES: [&str; 5] = ["echo", "echo-always", "loop", "agent", "served"];
const SESSIONS: usize = 10_000;
const MESSAGES: usize = 5;
/// Clients of the closed loop, and messages per client.
const CLIENTS: usize = 1_000;
const ROUNDS: usize = 50;

/// The channel of the benchmark and the replies that it received.
#[derive(Default)]
struct BenchFixture {
    handler: OnceLock<MessageHandler>,
    answered: AtomicUsize,
    all: Notify,
    out_of_order: AtomicUsize,
    last: Mutex<HashMap<String, usize>>,
    waiting: Mutex<HashMap<String, oneshot::Sender<()>>>,
}

struct FakeBenchChannel(Arc<BenchFixture>);

#[async_trait]
impl Channel for FakeBenchChannel {
    fn name(&self) -> &'static str {
        "lab"
    }

    async fn start(&self, _stop: CancellationToken) -> Result<()> {
        Ok(())
    }

    async fn stop(&self) -> Result<()> {
        Ok(())
    }

    async fn send(&self, message: &Outbound) -> Result<()> {
        let number = message.content().parse::<usize>().unwrap_or(usize::MAX - 1);
        let chat = message.chat_id().unwrap().into_owned();
        if let Some(waiting) = self.0.waiting.lock().unwrap().remove(&chat) {
            let _ = waiting.send(());
        }
        let before = self.0.last.lock().unwrap().insert(chat, number);
        if before.map_or(0, |before| before + 1) != number {
            self.0.out_of_order.fetch_add(1, Ordering::Relaxed);
        }
        if self.0.answered.fetch_add(1, Ordering::Relaxed) + 1 == SESSIONS * MESSAGES {
            self.0.all.notify_one();
        }
        Ok(())
    }
}

/// Provides the channel. The agent answers.
struct FakeBenchPlugin(Arc<BenchFixture>);

#[hooks(crate = bub_kernel)]
impl FakeBenchPlugin {
    fn provide_channels(&self, message_handler: &MessageHandler) -> Vec<Arc<dyn Channel>> {
        let _ = self.0.handler.set(Arc::clone(message_handler));
        vec![Arc::new(FakeBenchChannel(Arc::clone(&self.0)))]
    }
}

/// Answers with the prompt, without an agent.
struct FakeBenchModel;

#[hooks(crate = bub_kernel)]
impl FakeBenchModel {
    async fn run_model(&self, prompt: &Prompt) -> String {
        prompt.text()
    }

    async fn dispatch_outbound(&self, message: &Envelope, turn: Option<&Turn>) -> Result<bool> {
        turn.unwrap().deliver(message.clone()).await
    }
}

/// Returns the number in the last message, which is the answer.
fn echo(messages: &[Value]) -> String {
    let text = messages
        .last()
        .and_then(|last| last["content"].as_str())
        .unwrap_or_default();
    text.rsplit('\n').next().unwrap_or_default().to_owned()
}

fn compose(case: &str, lab: &Arc<BenchFixture>, home: &Path, server: &ModelServer) -> Framework {
    let talking = FakeBenchPlugin(Arc::clone(lab));
    let builder = Framework::builder().workspace(home);
    if !matches!(case, "agent" | "served") {
        return builder
            .plugin("lab", talking)
            .plugin("echo", FakeBenchModel)
            .build();
    }
    let variables = [
        ("BUB_HOME", home.join("home").into_os_string()),
        ("HOME", home.to_owned().into_os_string()),
        ("BUB_MODEL", "llamacpp:test".into()),
        (
            "BUB_LLAMACPP_API_BASE",
            format!("{}/v1", server.url()).into(),
        ),
    ];
    let settings = Loader::new(Environment::from_pairs(variables))
        .sections(bub::core_sections())
        .load()
        .unwrap();
    let answering = ModelOverride(Box::new(|_, request| {
        vec![
            ModelEvent::Text(echo(&request.messages)),
            ModelEvent::Finish(FinishReason::Stop),
        ]
    }));
    let options = BuiltinOptions {
        model_override: (case == "agent").then(|| Arc::new(answering)),
        ..BuiltinOptions::default()
    };
    server.forget_requests().answer_with(|request| {
        Reply::text(echo(
            request.json()["messages"]
                .as_array()
                .map_or(&[], Vec::as_slice),
        ))
    });
    builder
        .settings(Arc::new(settings))
        .plugin_with("builtin", |context| {
            Ok::<_, BoxError>(bub_agent::BuiltinAgent::new(context, options))
        })
        .plugin("lab", talking)
        .build()
}

fn message(session: usize, number: usize) -> Inbound {
    let chat = format!("chat{session}");
    let sender = Sender {
        role: Role::Owner,
        channel: "lab".to_owned(),
        chat_id: chat.clone(),
        id: "ada".to_owned(),
        name: String::new(),
    };
    let message =
        ChannelMessage::new(format!("lab:{chat}"), "lab", number.to_string()).chat_id(chat);
    Inbound::from(message).with_sender(sender)
}

/// Sends all messages at once from a few hundred senders, as on a busy server. Returns how long accepting took.
async fn flood(lab: &Arc<BenchFixture>) -> Vec<Duration> {
    let mut senders = tokio::task::JoinSet::new();
    for sender in 0..500 {
        let handler = Arc::clone(lab.handler.get().unwrap());
        senders.spawn(async move {
            let mut own = Vec::with_capacity(SESSIONS / 500 * MESSAGES);
            for number in 0..MESSAGES {
                for session in (sender..SESSIONS).step_by(500) {
                    let asked = Instant::now();
                    handler(message(session, number)).await.unwrap();
                    own.push(asked.elapsed());
                }
            }
            own
        });
    }
    let took = senders.join_all().await.concat();
    lab.all.notified().await;
    took
}

/// Sends messages from clients that each wait for their answer. Returns how long the answers took.
async fn closed_loop(lab: &Arc<BenchFixture>) -> Vec<Duration> {
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        let lab = Arc::clone(lab);
        clients.spawn(async move {
            let mut own = Vec::with_capacity(ROUNDS);
            for number in 0..ROUNDS {
                let (done, answered) = oneshot::channel();
                lab.waiting
                    .lock()
                    .unwrap()
                    .insert(format!("chat{client}"), done);
                let asked = Instant::now();
                lab.handler.get().unwrap()(message(client, number))
                    .await
                    .unwrap();
                answered.await.unwrap();
                own.push(asked.elapsed());
            }
            own
        });
    }
    clients.join_all().await.concat()
}

async fn run(case: &str) {
    let (dir, server) = (tempfile::tempdir().unwrap(), ModelServer::start());
    let lab = Arc::new(BenchFixture::default());
    let framework = compose(case, &lab, dir.path(), &server);
    let durability = match case {
        "echo-always" => Durability::Always,
        _ => Durability::Os,
    };
    let options = GatewayOptions {
        debounce: Duration::ZERO,
        max_wait: Duration::ZERO,
        active_window: Duration::ZERO,
        ..testing::options(JournalKind::file(dir.path().join("gateway"), durability))
    };
    let running = RunningGateway::start(&framework, options, &["all"])
        .await
        .unwrap();
    let before = memory("VmRSS");
    let (begun, busy) = (Instant::now(), cpu_time());
    let (count, mut latencies) = match case {
        "loop" => (CLIENTS * ROUNDS, closed_loop(&lab).await),
        _ => (SESSIONS * MESSAGES, flood(&lab).await),
    };
    let (took, busy) = (begun.elapsed(), cpu_time().saturating_sub(busy));
    latencies.sort_unstable();
    let p99 = latencies[latencies.len() * 99 / 100];
    drop(latencies);
    lab.last.lock().unwrap().clear();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (peak, idle) = (memory("VmHWM"), memory("VmRSS"));
    let say =
        |what: &str, value: f64, unit: &str| print_figure(&format!("{case}_{what}"), value, unit);
    say("messages", count as f64 / took.as_secs_f64(), "1/s");
    say(
        "cpu_of_a_message",
        busy.as_secs_f64() * 1e6 / count as f64,
        "µs",
    );
    say("p99", p99.as_secs_f64() * 1e6, "µs");
    say(
        "out_of_order",
        lab.out_of_order.load(Ordering::Relaxed) as f64,
        "messages",
    );
    say("connections", server.connections() as f64, "connections");
    for (what, memory) in [("before", before), ("peak", peak), ("idle", idle)] {
        say(&format!("memory_{what}"), memory as f64, "MB");
    }
    running.stop().await.unwrap();
}

fn memory(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find(|line| line.starts_with(field))
        .unwrap_or("0 0");
    line.split_whitespace()
        .nth(1)
        .unwrap_or("0")
        .parse::<usize>()
        .unwrap_or(0)
        / 1024
}

fn main() {
    let named: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"))
        .collect();
    if let [case] = named.as_slice() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        return runtime.block_on(run(case));
    }
    for case in CASES
        .iter()
        .filter(|case| named.is_empty() || named.iter().any(|name| name == *case))
    {
        std::process::Command::new(std::env::current_exe().unwrap())
            .arg(case)
            .status()
            .unwrap();
    }
}
