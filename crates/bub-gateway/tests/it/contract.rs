//! The contract of channels, and messages whose turn cannot start.

use std::sync::Arc;

use bub_kernel::{
    CancellationToken, Channel, ChannelMessage, ChannelRole, Envelope, Error, Framework, Inbound,
    Lifespan, LifespanScope, ModelStream, Outbound, Result, Role, State, Turn, TurnSnapshot,
    async_trait,
};
use futures_util::StreamExt as _;
use tokio::sync::watch;

use crate::harness::{FakeChannel, GatewayFixture};

/// A channel with only the required methods.
struct MinimalChannel;

#[async_trait]
impl Channel for MinimalChannel {
    fn name(&self) -> &'static str {
        "minimal"
    }

    async fn start(&self, _stop: CancellationToken) -> Result<()> {
        Ok(())
    }

    async fn stop(&self) -> Result<()> {
        Ok(())
    }

    async fn send(&self, _reply: &Outbound) -> Result<()> {
        Ok(())
    }
}

// H-140: the defaults of the contract.
#[tokio::test]
async fn a_channel_needs_a_name_a_start_a_stop_and_a_send() {
    let channel = Arc::new(MinimalChannel);
    let message = Envelope::from_text("hi");
    assert!(
        !channel.needs_debounce() && channel.is_enabled() && channel.role() == ChannelRole::Service
    );
    assert_eq!(channel.access_summary(), None);
    channel.send(&message.clone().into()).await.unwrap();
    let inbound = Inbound::from(message);
    let snapshot = TurnSnapshot {
        session_id: "s".into(),
        ..TurnSnapshot::default()
    };
    assert!(
        channel
            .admit_message(&inbound, &snapshot)
            .await
            .unwrap()
            .is_none()
    );
    let turn = Turn::detached(&Framework::builder().build(), inbound, State::new());
    let same = channel.stream_events(turn, ModelStream::from_text("as it was"));
    let seen: Vec<_> = same
        .map(|event| event.unwrap().to_value().to_string())
        .collect()
        .await;
    assert!(
        seen.iter().any(|event| event.contains("as it was")),
        "{seen:?}"
    );
}

// H-144: a message whose session cannot be resolved is rejected and reported. If admission fails, the message is
// processed.
#[tokio::test(start_paused = true)]
async fn failures_before_a_turn_are_reported_and_stop_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let channel = fixture.channel(0);
    let refused = channel.say("a", "nowhere").await.unwrap_err();
    assert!(refused.message().contains("on purpose"), "{refused}");
    assert!(refused.is_reported());
    assert_eq!(*fixture.echo.failed.lock().unwrap(), ["turn"]);
    channel.say("a", "undecided").await.unwrap().outcome().await;
    channel.say("a", "hi").await.unwrap().outcome().await;
    let sent = channel.wait_sent(3).await;
    assert!(
        sent[0].content.contains("was not answered"),
        "the sender is notified: {sent:?}"
    );
    assert_eq!(channel.contents()[1..], ["echo: undecided", "echo: hi"]);
    assert_eq!(
        *fixture.echo.failed.lock().unwrap(),
        ["turn", "admit_message"]
    );
    fixture.stop().await;
}

// H-149: any channel can stop the gateway, which then stops all channels.
#[tokio::test(start_paused = true)]
async fn a_channel_may_end_the_gateway() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(
        dir.path(),
        vec![FakeChannel::new("lab"), FakeChannel::new("other")],
    )
    .await;
    let channels = fixture.echo.channels.clone();
    channels[0]
        .starts
        .subscribe()
        .wait_for(|count| *count > 0)
        .await
        .unwrap();
    channels[0].stop.get().unwrap().cancel();
    fixture.ended().await;
    assert!(channels.iter().all(|channel| *channel.stops.borrow() == 1));
    let late = channels[1].say("a", "too late").await.unwrap_err();
    assert!(late.message().contains("the gateway is"), "{late}");
}

struct FakeTypingScope(watch::Sender<&'static str>);

#[async_trait]
impl LifespanScope for FakeTypingScope {
    async fn enter(&mut self) -> Result<()> {
        self.0.send_replace("begun");
        Ok(())
    }

    async fn exit(&mut self, error: Option<&Error>) -> Result<()> {
        self.0
            .send_replace(if error.is_some() { "failed" } else { "ended" });
        Ok(())
    }
}

// W-42: the lifespan of a message, such as a typing indicator, ends with its turn, even if the turn fails early.
#[tokio::test(start_paused = true)]
async fn the_lifespan_of_a_message_ends_also_when_its_turn_fails_before_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    for (text, end) in [("broken", "failed"), ("fail", "failed"), ("hi", "ended")] {
        let typing = watch::Sender::new("new");
        let message = ChannelMessage::new("lab:a", "lab", text).chat_id("a");
        let inbound =
            Inbound::from(message).with_lifespan(Lifespan::new(FakeTypingScope(typing.clone())));
        let receipt = fixture
            .channel(0)
            .hand_in(inbound, Role::Owner, "ada", None)
            .await
            .unwrap();
        receipt.outcome().await;
        assert_eq!(*typing.borrow(), end, "{text}");
    }
    fixture.stop().await;
}
