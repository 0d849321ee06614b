//! Messages that arrive close together become one turn.

use std::time::Duration;

use bub_kernel::{ChannelMessage, MessageOutcome, Role};
use tokio::time::{Instant, sleep};

use crate::harness::{FakeChannel, GatewayFixture, joined, replies};

async fn fixture(dir: &tempfile::TempDir) -> GatewayFixture {
    GatewayFixture::open(
        dir.path(),
        vec![FakeChannel {
            debounce: true,
            ..FakeChannel::new("lab")
        }],
    )
    .await
}

// H-143, H-42: all messages become one turn when the chat is quiet for the debounce time.
#[tokio::test(start_paused = true)]
async fn quick_messages_become_one_turn() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = fixture(&dir).await;
    let channel = fixture.channel(0);
    let started = Instant::now();
    let first = channel.say("a", "1").await.unwrap();
    sleep(Duration::from_millis(900)).await;
    let second = channel.say("a", "2").await.unwrap();
    assert_eq!(replies(&second.outcome().await), 1);
    assert_eq!(started.elapsed().as_millis(), 1900);
    assert_eq!(joined(&first.outcome().await), second.message_id().unwrap());
    assert_eq!(channel.wait_sent(1).await[0].content, "echo: 1\n2");
    fixture.stop().await;
}

// W-49: no message waits longer than the maximum, even if more keep arriving.
#[tokio::test(start_paused = true)]
async fn the_wait_has_a_hard_cap() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = fixture(&dir).await;
    let channel = fixture.channel(0);
    let started = Instant::now();
    for number in 0..24 {
        channel.say("a", &number.to_string()).await.unwrap();
        sleep(Duration::from_millis(500)).await;
        if started.elapsed() < Duration::from_secs(10) {
            assert!(
                fixture.echo.asked.borrow().is_empty(),
                "{:?}",
                started.elapsed()
            );
        }
    }
    let asked = fixture.echo.wait_asked(1).await;
    assert_eq!(asked[0].lines().count(), 20);
    fixture.stop().await;
}

// H-143: commands are not debounced.
#[tokio::test(start_paused = true)]
async fn commands_bypass_the_debounce() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = fixture(&dir).await;
    let channel = fixture.channel(0);
    let started = Instant::now();
    channel.say("a", "held").await.unwrap();
    channel.say("a", ",help").await.unwrap().outcome().await;
    assert_eq!(started.elapsed(), Duration::ZERO);
    fixture.echo.wait_asked(2).await;
    fixture.stop().await;
}

// H-143: a message that does not address bub joins while the chat is active. Alone it waits for the maximum. It is
// dropped if the chat is not active.
#[tokio::test(start_paused = true)]
async fn heard_messages_need_an_active_chat() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = fixture(&dir).await;
    let channel = fixture.channel(0);
    let hear = |text: &str| {
        let message = ChannelMessage::new("lab:a", "lab", text).chat_id("a");
        channel.hand_in(message, Role::Member, "bob", None)
    };
    let unheard = hear("too early").await.unwrap();
    assert!(matches!(
        unheard.outcome().await,
        MessageOutcome::Dropped { .. }
    ));
    channel.say("a", "hey").await.unwrap();
    let joined = hear("also").await.unwrap();
    assert!(matches!(
        joined.outcome().await,
        MessageOutcome::Joined { .. } | MessageOutcome::Done { .. }
    ));
    assert_eq!(fixture.echo.asked.borrow().clone(), ["hey\nalso"]);
    let started = Instant::now();
    let alone = hear("alone").await.unwrap();
    assert_eq!(replies(&alone.outcome().await), 1);
    assert_eq!(started.elapsed(), Duration::from_secs(10));
    // The window starts at the last message that addressed bub and includes its end.
    sleep(Duration::from_secs(49)).await;
    assert!(matches!(
        hear("last moment").await.unwrap().outcome().await,
        MessageOutcome::Done { .. }
    ));
    assert!(matches!(
        hear("too late").await.unwrap().outcome().await,
        MessageOutcome::Dropped { .. }
    ));
    fixture.stop().await;
}

// W-14: messages that are held when the gateway stops are answered before it ends.
#[tokio::test(start_paused = true)]
async fn a_stop_flushes_what_is_held() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = fixture(&dir).await;
    let channel = std::sync::Arc::clone(fixture.channel(0));
    channel.say("a", "1").await.unwrap();
    channel.say("a", "2").await.unwrap();
    fixture.stop().await;
    assert_eq!(channel.contents(), ["echo: 1\n2"]);
}
