//! The session of a message: resolved once, and changed when its chat switches.

use std::{sync::Arc, time::Duration};

use bub_kernel::{
    Admission, AdmissionDecision, ChannelMessage, InboundReceipt, MessageOutcome, Role, SessionId,
};
use bub_tape::{Durability, EntryRange, LeaseWait, MemoryStore};
use bub_testkit::{Faults, run_process};

use crate::harness::{Echo, FakeChannel, GatewayFixture, options, options_on};

/// Returns the session in which a message was answered.
async fn session_of(receipt: &InboundReceipt) -> SessionId {
    match receipt.outcome().await {
        MessageOutcome::Done {
            report: Some(report),
            ..
        } => report.session_id,
        other => panic!("{other:?}"),
    }
}

// L4: `resolve_session` is called once per message, whatever happens to the message.
#[tokio::test(start_paused = true)]
async fn every_message_is_resolved_once_and_follows_the_switch_of_its_chat() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let channel = fixture.channel(0);
    let first = channel.say("a", "wait 1").await.unwrap();
    fixture.echo.wait_asked(1).await;
    let switch = channel.say("a", ",switch lab:new").await.unwrap();
    let waited = channel.say("a", "2").await.unwrap();
    // Another chat that uses the same session stays there.
    let other = ChannelMessage::new("lab:a", "lab", "3").chat_id("b");
    let other = channel.hand_in(other, Role::Owner, "ada", None);
    let other = other.await.unwrap();
    let last = channel.say("a", "4").await.unwrap();
    fixture.echo.permits.add_permits(1);
    let sessions = [
        (&first, "lab:a"),
        (&switch, "lab:a"),
        (&waited, "lab:new"),
        (&other, "lab:a"),
        (&last, "lab:new"),
    ];
    for (receipt, session_id) in sessions {
        assert_eq!(session_of(receipt).await, session_id);
    }
    channel.say("a", "5").await.unwrap().outcome().await;
    let resolved = fixture.echo.resolved.lock().unwrap().clone();
    assert_eq!(resolved, ["wait 1", ",switch lab:new", "2", "3", "4", "5"]);
    let snapshots = channel.snapshots.lock().unwrap().len();
    assert_eq!(snapshots, 6, "admission is also called once per message");
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_held_back_follows_and_is_collected_with_later_ones() {
    let dir = tempfile::tempdir().unwrap();
    let lab = FakeChannel {
        debounce: true,
        ..FakeChannel::new("lab")
    };
    let fixture = GatewayFixture::open(dir.path(), vec![lab]).await;
    let channel = fixture.channel(0);
    let held = channel.say("a", "1").await.unwrap();
    let switch = channel.say("a", ",switch lab:new").await.unwrap();
    switch.outcome().await;
    let later = channel.say("a", "2").await.unwrap();
    assert_eq!(session_of(&later).await, "lab:new");
    assert!(matches!(
        held.outcome().await,
        MessageOutcome::Joined { .. }
    ));
    assert_eq!(channel.wait_sent(2).await[1].content, "echo: 1\n2");
    assert_eq!(fixture.echo.resolved.lock().unwrap().len(), 3);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_steering_message_that_the_switching_turn_leaves_follows() {
    let dir = tempfile::tempdir().unwrap();
    let lab = FakeChannel::new("lab");
    *lab.admission.lock().unwrap() = Some(Admission::new(AdmissionDecision::Steer));
    let fixture = GatewayFixture::open(dir.path(), vec![lab]).await;
    let channel = fixture.channel(0);
    channel.say("a", ",switch lab:new wait").await.unwrap();
    fixture.echo.wait_asked(1).await;
    let unread = channel.say("a", "2").await.unwrap();
    fixture.echo.inbox.arrived.notified().await;
    fixture.echo.permits.add_permits(1);
    assert_eq!(session_of(&unread).await, "lab:new");
    assert_eq!(fixture.echo.resolved.lock().unwrap().len(), 2);
    fixture.stop().await;
}

// The chat switches after the session is resolved and before the message is in its lane.
#[tokio::test(start_paused = true)]
async fn a_message_that_is_being_accepted_follows() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let channel = fixture.channel(0);
    let switch = channel.say("a", ",switch lab:new wait").await.unwrap();
    fixture.echo.wait_asked(1).await;
    let slow = channel.say("a", "slow");
    let switching = async {
        // Starts after the other message.
        tokio::time::sleep(Duration::from_secs(1)).await;
        fixture.echo.permits.add_permits(1);
        switch.outcome().await;
        fixture.echo.permits.add_permits(1);
    };
    let (slow, ()) = tokio::join!(slow, switching);
    assert_eq!(session_of(&slow.unwrap()).await, "lab:new");
    fixture.stop().await;
}

// H-144: the message and the error are on the tape of the chat, whose lease is free.
#[tokio::test(start_paused = true)]
async fn a_message_without_a_session_is_recorded_on_the_tape_of_its_chat() {
    let dir = tempfile::tempdir().unwrap();
    let mut echo = Echo::new(vec![FakeChannel::new("lab")]);
    echo.tapes = Some(Arc::new(MemoryStore::new()));
    let fixture = GatewayFixture::with(options(dir.path()), echo).await;
    let message = ChannelMessage::new("elsewhere", "lab", "nowhere").chat_id("a");
    let refused = fixture
        .channel(0)
        .hand_in(message, Role::Owner, "ada", None)
        .await
        .unwrap_err();
    assert!(refused.is_reported(), "{refused}");
    assert_eq!(*fixture.echo.failed.lock().unwrap(), ["turn"]);
    let sent = fixture.channel(0).wait_sent(1).await;
    assert!(sent[0].content.contains("was not answered"), "{sent:?}");
    let tape = fixture.framework.session_tape(&"lab:a".into()).unwrap();
    let tape = tape.unwrap();
    let entries = tape.entries(EntryRange::ALL).await.unwrap();
    let text: Vec<_> = entries
        .iter()
        .map(|entry| format!("{:?}", entry.payload))
        .collect();
    let has = |part: &str| text.iter().filter(|entry| entry.contains(part)).count();
    assert_eq!((has("nowhere"), has("on purpose")), (1, 1), "{text:?}");
    drop(tape.lease(LeaseWait::No).await.unwrap());
    fixture.stop().await;
    assert_eq!(count_recovered(dir.path()).await, 0);
}

async fn count_recovered(directory: &std::path::Path) -> usize {
    let fixture = GatewayFixture::open(directory, vec![FakeChannel::new("lab")]).await;
    let recovered_count = fixture.recovered.messages + fixture.recovered.replies;
    fixture.stop().await;
    recovered_count
}

// L1: an interrupted turn resumes in the session in which it started, even if its message was accepted for another.
#[test]
fn a_turn_goes_on_in_the_session_that_its_message_was_moved_to() {
    let (faults, dir) = (Faults::new(), tempfile::tempdir().unwrap());
    let options = || options_on(faults.fs(), dir.path(), Durability::Os);
    run_process(async {
        let fixture =
            GatewayFixture::with(options(), Echo::new(vec![FakeChannel::new("lab")])).await;
        let channel = fixture.channel(0);
        channel.say("a", "wait 1").await.unwrap();
        fixture.echo.wait_asked(1).await;
        channel.say("a", ",switch lab:new").await.unwrap();
        channel.say("a", "wait 2").await.unwrap();
        channel.say("a", "3").await.unwrap();
        fixture.echo.permits.add_permits(1);
        fixture.echo.wait_asked(3).await;
        faults.crash_at(faults.steps() + 1);
        channel.say("b", "unheard").await.unwrap_err();
    });
    // Every start rewrites the journal.
    run_process(crate::journal::rewrite(dir.path()));
    run_process(async {
        let echo = Echo::new(vec![FakeChannel::new("lab")]);
        echo.permits.add_permits(1);
        // A message whose turn never started goes to the current session of its chat.
        let newest = ("a".to_owned(), "lab:newest".to_owned());
        echo.switched.lock().unwrap().extend([newest]);
        let fixture = GatewayFixture::with(self::options(dir.path()), echo).await;
        assert_eq!(fixture.recovered.messages, 2);
        fixture.channel(0).wait_sent(2).await;
        assert_eq!(*fixture.echo.resolved.lock().unwrap(), ["3"]);
        let mut sessions = fixture.echo.sessions.lock().unwrap().clone();
        sessions.sort();
        assert_eq!(sessions, ["lab:new", "lab:newest"]);
        fixture.stop().await;
    });
}

// If a recovered message cannot be resolved, the stored session is used.
#[tokio::test(start_paused = true)]
async fn a_recovered_message_that_cannot_be_resolved_stays_in_its_session() {
    let dir = tempfile::tempdir().unwrap();
    let message = serde_json::json!({"content": "nowhere", "channel": "lab", "chat_id": "a"});
    let accepted = serde_json::json!({"accepted": {"id": "m1", "at": 0, "session": "lab:kept", "message": message}});
    crate::journal::write(dir.path(), &[accepted]);
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let sent = fixture.channel(0).wait_sent(1).await;
    assert_eq!(sent[0].content, "echo: nowhere");
    assert_eq!(*fixture.echo.sessions.lock().unwrap(), ["lab:kept"]);
    fixture.stop().await;
}
