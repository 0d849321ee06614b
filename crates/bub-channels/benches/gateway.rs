//! How many messages a gateway answers: an echo model, a channel in the same process, the real journal.
//!
//! `cargo bench -p bub-channels --bench gateway [-- SESSIONS MESSAGES]`
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    missing_docs,
    reason = "a bench"
)]

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bub_channels::{Gateway, NoHouse, Options};
use bub_kernel::{
    BoxFuture, CancellationToken, Channel, ChannelMessage, Envelope, Error, Framework, FrameworkRef,
    MessageHandler, PluginContext, Prompt, Result, hooks,
};
use bub_tape::{Durability, fs::RealFs};
use tokio::sync::Notify;

#[derive(Clone, Default)]
struct Lab(Arc<Inner>);

#[derive(Default)]
struct Inner {
    handler: OnceLock<MessageHandler>,
    framework: OnceLock<FrameworkRef>,
    answered: AtomicUsize,
    expected: AtomicUsize,
    all: Notify,
    out_of_order: AtomicUsize,
    last: Mutex<std::collections::HashMap<String, usize>>,
}

struct LabChannel(Arc<Inner>);

impl Channel for LabChannel {
    fn name(&self) -> &'static str {
        "lab"
    }

    fn start(&self, _stop: CancellationToken) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn stop(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn send<'a>(&'a self, message: &'a Envelope) -> BoxFuture<'a, Result<()>> {
        let number: usize = message.content().parse().unwrap();
        let chat = message.chat_id().unwrap().into_owned();
        let before = self.0.last.lock().unwrap().insert(chat, number);
        if before.map_or(0, |before| before + 1) != number {
            self.0.out_of_order.fetch_add(1, Ordering::Relaxed);
        }
        if self.0.answered.fetch_add(1, Ordering::Relaxed) + 1 == self.0.expected.load(Ordering::Relaxed) {
            self.0.all.notify_one();
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

#[hooks(crate = bub_kernel)]
impl Lab {
    async fn run_model(&self, prompt: &Prompt) -> String {
        prompt.text()
    }

    async fn dispatch_outbound(&self, message: &Envelope) -> Result<bool> {
        self.0.framework.get().unwrap().get().unwrap().router().unwrap().dispatch(message).await
    }

    fn provide_channels(&self, message_handler: &MessageHandler) -> Vec<Arc<dyn Channel>> {
        let _ = self.0.handler.set(Arc::clone(message_handler));
        vec![Arc::new(LabChannel(Arc::clone(&self.0)))]
    }
}

fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or("0 0");
    line.split_whitespace().nth(1).unwrap_or("0").parse::<usize>().unwrap_or(0) / 1024
}

async fn round(sessions: usize, messages: usize, durability: Durability) {
    let dir = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let plugin = lab.clone();
    let make = move |context: &PluginContext<'_>| {
        let _ = plugin.0.framework.set(context.framework.clone());
        Ok::<_, Error>(plugin)
    };
    let framework = Framework::builder().plugin_with("lab", make).build();
    let options = Options {
        directory: dir.path().to_owned(),
        durability,
        debounce: Duration::ZERO,
        max_wait: Duration::ZERO,
        active_window: Duration::ZERO,
        stream_output: false,
        drain: Duration::from_secs(30),
        session_queue: 100,
        queue: 10_000,
        fs: Arc::new(RealFs),
        house: Arc::new(NoHouse),
    };
    let gateway = Gateway::open(&framework, options, &["all".to_owned()]).unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(gateway.run(stop.clone(), || {}));
    while framework.router().is_none() {
        tokio::task::yield_now().await;
    }
    let before = memory();
    lab.0.expected.store(sessions * messages, Ordering::Relaxed);
    let begun = Instant::now();
    let handler = Arc::clone(lab.0.handler.get().unwrap());
    // A few hundred senders, as a busy server would have.
    let mut senders = tokio::task::JoinSet::new();
    let latencies = Arc::new(Mutex::new(Vec::new()));
    for sender in 0..500 {
        let (handler, latencies) = (Arc::clone(&handler), Arc::clone(&latencies));
        senders.spawn(async move {
            let mut own = Vec::new();
            for number in 0..messages {
                for session in (sender..sessions).step_by(500) {
                    let chat = format!("chat{session}");
                    let message =
                        ChannelMessage::new(format!("lab:{chat}"), "lab", number.to_string()).chat_id(chat);
                    let asked = Instant::now();
                    handler(message.into()).await.unwrap();
                    own.push(asked.elapsed());
                }
            }
            latencies.lock().unwrap().extend(own);
        });
    }
    senders.join_all().await;
    lab.0.all.notified().await;
    let took = begun.elapsed();
    let after = memory();
    let mut latencies = std::mem::take(&mut *latencies.lock().unwrap());
    latencies.sort_unstable();
    let p99 = latencies.get(latencies.len() * 99 / 100).copied().unwrap_or_default();
    stop.cancel();
    running.await.unwrap().unwrap();
    let rate = (sessions * messages) as f64 / took.as_secs_f64();
    println!(
        "{durability:?}: {sessions} sessions x {messages}: {rate:.0} messages/s, accept p99 {p99:?}, {} out of order, memory {before} -> {after} MB",
        lab.0.out_of_order.load(Ordering::Relaxed),
    );
}

fn main() {
    let numbers: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let (sessions, messages) =
        (numbers.first().copied().unwrap_or(10_000), numbers.get(1).copied().unwrap_or(5));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    for _ in 0..3 {
        runtime.block_on(round(sessions, messages, Durability::Os));
    }
    runtime.block_on(round(sessions, messages, Durability::Always));
}
