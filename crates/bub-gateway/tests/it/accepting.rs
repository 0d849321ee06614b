//! Messages are in the journal before their session is resolved.

use std::{path::Path, sync::Arc, time::Duration};

use bub_kernel::{ErrorKind, Role};
use bub_testkit::run_process;

use crate::harness::{Echo, FakeChannel, GatewayFixture, options, replies};

fn echo() -> Echo {
    Echo::new(vec![FakeChannel::new("lab")])
}

/// Submits a message whose session takes long to resolve, and waits until the hook runs.
async fn say_slowly(fixture: &GatewayFixture, key: Option<&'static str>) -> SlowSubmission {
    let channel = Arc::clone(fixture.channel(0));
    let submission = tokio::spawn(async move {
        let accepted = channel
            .say_as((Role::Owner, "ada"), "a", "slow", key)
            .await?;
        Ok(accepted.message_id().unwrap().clone())
    });
    while fixture.echo.resolved.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    submission
}

type SlowSubmission = tokio::task::JoinHandle<bub_kernel::Result<bub_kernel::MessageId>>;

fn stop_in_resolve_session(dir: &Path) {
    run_process(async {
        let fixture = GatewayFixture::with(options(dir), echo()).await;
        drop(say_slowly(&fixture, Some("k")).await);
    });
}

// L1: a message whose process dies in `resolve_session` is answered by the next one. A sender who sends it again with
// the same key gets no second answer.
#[test]
fn a_message_survives_a_crash_in_resolve_session() {
    let dir = tempfile::tempdir().unwrap();
    stop_in_resolve_session(dir.path());
    run_process(async {
        let echo = echo();
        echo.permits.add_permits(1);
        let fixture = GatewayFixture::with(options(dir.path()), echo).await;
        assert_eq!(fixture.recovered.messages, 1);
        let channel = Arc::clone(fixture.channel(0));
        let again = channel.say_as((Role::Owner, "ada"), "a", "slow", Some("k"));
        assert!(again.await.unwrap().is_duplicate());
        channel.wait_sent(1).await;
        fixture.stop().await;
        assert_eq!(channel.contents(), ["echo: slow"]);
    });
}

// L1: a message that ends the process whenever its session is resolved does not stop the gateway forever.
#[test]
fn a_message_that_crashes_resolve_session_is_processed_in_the_session_of_its_chat() {
    let dir = tempfile::tempdir().unwrap();
    stop_in_resolve_session(dir.path());
    let mut crashes = 0;
    loop {
        let answered = run_process(async {
            let echo = echo();
            let starting = GatewayFixture::with(options(dir.path()), echo.clone());
            // The hook never returns. Here the process ends.
            let fixture = tokio::time::timeout(Duration::from_secs(1), starting)
                .await
                .ok()?;
            let channel = Arc::clone(fixture.channel(0));
            channel.wait_sent(1).await;
            fixture.stop().await;
            let session = echo.sessions.lock().unwrap().pop().unwrap();
            Some((channel.contents(), session.to_string()))
        });
        let Some((contents, session)) = answered else {
            crashes += 1;
            assert!(crashes < 10);
            continue;
        };
        assert_eq!((crashes, session.as_str()), (5, "lab:a"));
        assert_eq!(contents, ["echo: slow"]);
        break;
    }
}

// L1: a rejected message is not in the journal, and its sender can send it again with the same key, also after a restart.
#[tokio::test(start_paused = true)]
async fn a_rejected_message_can_be_sent_again_with_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let owner = (Role::Owner, "ada");
    let fixture = GatewayFixture::with(options(dir.path()), echo()).await;
    for _ in 0..2 {
        let rejected = fixture.channel(0).say_as(owner, "a", "nowhere", Some("k"));
        assert!(rejected.await.is_err());
    }
    fixture.stop().await;
    let fixture = GatewayFixture::with(options(dir.path()), echo()).await;
    assert_eq!(fixture.recovered.messages, 0);
    let accepted = fixture.channel(0).say_as(owner, "a", "hi", Some("k"));
    let accepted = accepted.await.unwrap();
    assert!(!accepted.is_duplicate());
    assert_eq!(replies(&accepted.outcome().await), 1);
    fixture.stop().await;
}

// L4: a duplicate is not accepted before it is known whether the first message is.
#[tokio::test(start_paused = true)]
async fn a_duplicate_waits_for_the_first_message() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::with(options(dir.path()), echo()).await;
    let first = say_slowly(&fixture, Some("k")).await;
    let duplicate = fixture
        .channel(0)
        .say_as((Role::Owner, "ada"), "a", "slow", Some("k"));
    let mut duplicate = Box::pin(duplicate);
    let waiting = tokio::time::timeout(Duration::from_secs(1), &mut duplicate).await;
    assert!(waiting.is_err(), "the duplicate was accepted");
    fixture.echo.permits.add_permits(1);
    let first = first.await.unwrap().unwrap();
    let duplicate = duplicate.await.unwrap();
    assert!(duplicate.is_duplicate());
    assert_eq!(duplicate.message_id(), Some(&first));
    fixture.stop().await;
}

// A message in `resolve_session` is rejected when the gateway has stopped waiting for it. The sender can send it again.
#[tokio::test(start_paused = true)]
async fn a_stopping_gateway_rejects_a_message_in_resolve_session() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::with(options(dir.path()), echo()).await;
    let submission = say_slowly(&fixture, None).await;
    fixture.stop().await;
    let error = submission.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Temporary);
    assert_eq!(
        error.message(),
        "message rejected: bub is stopping; send it again later"
    );
    let fixture = GatewayFixture::with(options(dir.path()), echo()).await;
    assert_eq!(fixture.recovered.messages, 0);
    fixture.stop().await;
}

// L4: the messages of a chat are answered in the order of their arrival, although the session of the first one takes
// longer to resolve. Other chats do not wait.
#[tokio::test(start_paused = true)]
async fn a_message_does_not_overtake_one_whose_session_is_being_resolved() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::with(options(dir.path()), echo()).await;
    let channel = Arc::clone(fixture.channel(0));
    let first = say_slowly(&fixture, None).await;
    let mut second = Box::pin(channel.say("a", "second"));
    let waiting = tokio::time::timeout(Duration::from_secs(1), &mut second).await;
    assert!(waiting.is_err(), "the second message was accepted");
    let other = channel.say("b", "other").await.unwrap();
    assert_eq!(replies(&other.outcome().await), 1);
    fixture.echo.permits.add_permits(1);
    first.await.unwrap().unwrap();
    let second = second.await.unwrap();
    assert_eq!(replies(&second.outcome().await), 1);
    fixture.stop().await;
    let contents = channel.contents();
    assert_eq!(contents, ["echo: other", "echo: slow", "echo: second"]);
}

// H-147: `,quit` does not wait for messages whose session is being resolved. They are not in its session yet and are
// answered.
#[tokio::test(start_paused = true)]
async fn quit_does_not_wait_for_a_message_whose_session_is_being_resolved() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::with(options(dir.path()), echo()).await;
    let channel = Arc::clone(fixture.channel(0));
    let first = say_slowly(&fixture, None).await;
    let quit = channel.say("a", ",quit").await.unwrap();
    assert_eq!(replies(&quit.outcome().await), 1);
    fixture.echo.permits.add_permits(1);
    first.await.unwrap().unwrap();
    fixture.stop().await;
    assert_eq!(channel.contents(), ["echo: ,quit", "echo: slow"]);
}

// L4: a resumed turn does not stream an answer that an earlier process may have shown.
#[test]
fn a_resumed_turn_with_replies_does_not_stream_again() {
    let dir = tempfile::tempdir().unwrap();
    for streams in [true, false] {
        let options = bub_gateway::GatewayOptions {
            stream_output: true,
            ..options(dir.path())
        };
        run_process(async {
            let fixture = GatewayFixture::with(options, echo()).await;
            if streams {
                fixture.channel(0).say("a", "tell b wait").await.unwrap();
                fixture.channel(0).wait_sent(1).await;
            }
            fixture.echo.wait_asked(1).await;
            assert_eq!(*fixture.echo.streams.lock().unwrap(), [streams]);
        });
    }
}
