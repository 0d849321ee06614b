//! The number of allocations of hooks and turns. Unlike time, it does not depend on the machine.

use std::{future::Future, sync::Arc};

use bub_kernel::{
    Channel, ChannelRouter, Envelope, Framework, MessageId, ModelStream, Outbound, Plugin, Prompt,
    Result, SessionId, State, StreamEvent, Turn, async_trait, hooks,
    hooks::{args, point::DispatchOutbound},
};
use futures_util::{FutureExt, StreamExt};
use tokio_util::sync::CancellationToken;

struct SyncPlugin;

#[hooks(crate = bub_kernel)]
impl SyncPlugin {
    fn dispatch_outbound(&self, message: &Envelope) -> bool {
        message.fields().len() == 1
    }
}

struct AsyncPlugin;

#[hooks(crate = bub_kernel)]
impl AsyncPlugin {
    async fn dispatch_outbound(&self, message: &Envelope) -> bool {
        message.fields().len() == 1
    }
}

struct EchoPlugin;

#[hooks(crate = bub_kernel)]
impl EchoPlugin {
    async fn run_model(&self, prompt: &Prompt) -> Option<String> {
        Some(prompt.text())
    }
}

fn run_ready<T>(work: impl Future<Output = T>) -> T {
    work.now_or_never().unwrap()
}

/// Returns the number of allocations of the second run of `work`.
fn allocations(label: &str, mut work: impl FnMut()) -> u64 {
    work();
    let count = allocation_counter::measure(work).count_total;
    println!("{label}: {count} allocations");
    count
}

fn broadcast<P: Plugin>(label: &str, plugin: fn() -> P) -> u64 {
    let framework = (0..5)
        .fold(Framework::builder(), |builder, number| {
            builder.plugin(format!("plugin {number}"), plugin())
        })
        .build();
    let message = Envelope::from_text("hi");
    allocations(label, || {
        let args = args::DispatchOutbound {
            message: &message,
            turn: None,
        };
        let delivered = run_ready(framework.hooks().call_all::<DispatchOutbound>(args)).unwrap();
        assert_eq!(delivered, [Some(true); 5]);
    })
}

#[test]
fn a_broadcast_through_five_sync_implementations_allocates_once() {
    assert!(broadcast("broadcast, 5 sync", || SyncPlugin) <= 1);
}

#[test]
fn a_broadcast_through_five_ready_async_ones_allocates_six_times() {
    assert!(broadcast("broadcast, 5 ready async", || AsyncPlugin) <= 6);
}

/// Covers the turn, its id, its cancellation token and its record, which is created only when it is read.
#[test]
fn a_bare_turn_stays_small() {
    let framework = Framework::builder()
        .workspace("/project")
        .plugin("echo", EchoPlugin)
        .build();
    let message = || {
        Envelope::from_text("hi")
            .with("channel", "cli")
            .with("chat_id", "room")
    };
    let of_message = allocations("its message", || drop(message()));
    let with_message = allocations("a bare turn with its message", || {
        let result = run_ready(framework.process_inbound(message())).unwrap();
        assert_eq!(result.model_output, "hi");
    });
    assert!(
        with_message - of_message <= 30,
        "{}",
        with_message - of_message
    );
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

/// The one allocation is the channel's own future. The message is not copied for each event.
#[test]
fn an_event_on_its_way_to_a_channel_allocates_once() {
    let router = CliRouter(Arc::new(CliChannel));
    let message = Envelope::from_text("hi").with("channel", "cli");
    let turn = Turn::detached(&Framework::builder().build(), message, State::new());
    let streaming = |events: usize| {
        allocations(&format!("{events} events through wrap_stream"), || {
            let events = std::iter::repeat_n((), events).map(|()| StreamEvent::Text(String::new()));
            let mut stream = router.wrap_stream(&turn, ModelStream::from_events(events));
            while run_ready(stream.next()).is_some() {}
        })
    };
    assert_eq!(streaming(101) - streaming(1), 100);
}
