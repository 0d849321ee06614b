//! How many allocations hooks and turns cost. Time varies with the machine, this does not.

#![allow(clippy::unwrap_used, reason = "a test that fails is meant to stop")]
#![allow(clippy::print_stdout, reason = "the figures are worth seeing")]

use std::{future::Future, sync::Arc};

use bub_kernel::{
    BoxFuture, Channel, ChannelRouter, Envelope, Framework, MessageId, ModelStream, Outbound,
    Plugin, Prompt, Result, SessionId, State, StreamEvent, Turn, hooks,
    hooks::{args, point::DispatchOutbound},
};
use futures_util::{FutureExt, StreamExt};
use tokio_util::sync::CancellationToken;

struct Sync;

#[hooks(crate = bub_kernel)]
impl Sync {
    fn dispatch_outbound(&self, message: &Envelope) -> bool {
        message.fields().len() == 1
    }
}

struct Ready;

#[hooks(crate = bub_kernel)]
impl Ready {
    async fn dispatch_outbound(&self, message: &Envelope) -> bool {
        message.fields().len() == 1
    }
}

struct Echo;

#[hooks(crate = bub_kernel)]
impl Echo {
    async fn run_model(&self, prompt: &Prompt) -> Option<String> {
        Some(prompt.text())
    }
}

fn ready<T>(work: impl Future<Output = T>) -> T {
    work.now_or_never().unwrap()
}

/// The allocations of some work, the second time it is done.
fn allocations(what: &str, mut work: impl FnMut()) -> u64 {
    work();
    let count = allocation_counter::measure(work).count_total;
    println!("{what}: {count} allocations");
    count
}

fn broadcast<P: Plugin>(what: &str, plugin: fn() -> P) -> u64 {
    let framework = (0..5)
        .fold(Framework::builder(), |builder, number| {
            builder.plugin(format!("plugin {number}"), plugin())
        })
        .build();
    let message = Envelope::text("hi");
    allocations(what, || {
        let args = args::DispatchOutbound {
            message: &message,
            turn: None,
        };
        let delivered = ready(framework.hooks().call_many::<DispatchOutbound>(args)).unwrap();
        assert_eq!(delivered, [Some(true); 5]);
    })
}

#[test]
fn a_broadcast_through_five_sync_implementations_allocates_once() {
    assert!(broadcast("broadcast, 5 sync", || Sync) <= 1);
}

#[test]
fn a_broadcast_through_five_ready_async_ones_allocates_six_times() {
    assert!(broadcast("broadcast, 5 ready async", || Ready) <= 6);
}

/// The turn, its id, its cancellation and its record, which is made only when something reads it.
#[test]
fn a_bare_turn_stays_small() {
    let framework = Framework::builder()
        .workspace("/project")
        .plugin("echo", Echo)
        .build();
    let message = || {
        Envelope::text("hi")
            .with("channel", "cli")
            .with("chat_id", "room")
    };
    let of_message = allocations("its message", || drop(message()));
    let with_message = allocations("a bare turn with its message", || {
        let result = ready(framework.process_inbound(message())).unwrap();
        assert_eq!(result.model_output, "hi");
    });
    assert!(
        with_message - of_message <= 30,
        "{}",
        with_message - of_message
    );
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

/// Only the channel's own future: the message is not copied for every event.
#[test]
fn an_event_on_its_way_to_a_channel_allocates_once() {
    let router = ToCli(Arc::new(Cli));
    let message = Envelope::text("hi").with("channel", "cli");
    let turn = Turn::detached(&Framework::builder().build(), message, State::new());
    let streaming = |events: usize| {
        allocations(&format!("{events} events through wrap_stream"), || {
            let events = std::iter::repeat_n((), events).map(|()| StreamEvent::Text(String::new()));
            let mut stream = router.wrap_stream(&turn, ModelStream::from_events(events));
            while ready(stream.next()).is_some() {}
        })
    };
    assert_eq!(streaming(101) - streaming(1), 100);
}
