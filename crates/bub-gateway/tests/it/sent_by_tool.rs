//! If a tool sent a reply to the chat, the plain reply is not sent.

use std::sync::Arc;

use bub_tape::Durability;
use bub_testkit::Faults;

use crate::harness::{Echo, FakeChannel, GatewayFixture, options_on, replies};

// Design §7: after a tool sent a reply, the plain reply is not sent. Other replies are.
#[tokio::test(start_paused = true)]
async fn no_plain_reply_comes_on_top_of_what_a_tool_sent_to_the_chat() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let channel = fixture.channel(0);
    let cases: [(&str, &[&str]); 5] = [
        ("hello", &["echo: hello"]),
        ("tell a", &["by tool"]),
        ("tell b", &["by tool", "echo: tell b"]),
        ("script a", &[]),
        ("script b", &["echo: script b"]),
    ];
    let mut expected = Vec::new();
    for (text, contents) in cases {
        let outcome = channel.say("a", text).await.unwrap().outcome().await;
        assert_eq!(replies(&outcome) as usize, contents.len(), "{text}");
        expected.extend(contents.iter().map(|text| (*text).to_owned()));
        let mut sent: Vec<_> = channel
            .wait_sent(expected.len())
            .await
            .into_iter()
            .map(|sent| sent.content)
            .collect();
        sent.sort();
        let mut sorted = expected.clone();
        sorted.sort();
        assert_eq!(sent, sorted, "{text}");
    }
    fixture.stop().await;
    assert_eq!(count_recovered(dir.path()).await, 0);
}

async fn count_recovered(directory: &std::path::Path) -> u64 {
    let fixture = GatewayFixture::open(directory, vec![FakeChannel::new("lab")]).await;
    let recovered = fixture.recovered;
    fixture.stop().await;
    (recovered.messages + recovered.replies) as u64
}

// Also if the process ended between the tool call and the plain reply.
#[test]
fn a_turn_that_goes_on_after_a_crash_knows_that_it_has_spoken() {
    let new_process = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
    };
    let (faults, dir) = (Faults::new(), tempfile::tempdir().unwrap());
    let options = || options_on(faults.fs(), dir.path(), Durability::Os);
    new_process().block_on(async {
        let fixture =
            GatewayFixture::with(options(), Echo::new(vec![FakeChannel::new("lab")])).await;
        fixture.channel(0).say("a", "tell a wait").await.unwrap();
        fixture.channel(0).wait_sent(1).await;
    });
    new_process().block_on(async {
        let echo = Echo::new(vec![FakeChannel::new("lab")]);
        echo.permits.add_permits(1);
        let fixture = GatewayFixture::with(options(), echo).await;
        assert_eq!(fixture.recovered.messages, 1);
        let channel = Arc::clone(fixture.channel(0));
        fixture.stop().await;
        assert!(
            !channel.contents().contains(&"echo: tell a wait".to_owned()),
            "{:?}",
            channel.contents()
        );
    });
}
