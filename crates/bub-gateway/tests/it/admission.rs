//! Admission of messages: process, drop, follow up, steer.

use std::sync::atomic::Ordering;

use bub_kernel::{Admission, AdmissionDecision, Role, TurnSnapshot};

use crate::harness::{FakeChannel, GatewayFixture, dropped, joined, replies};

async fn fixture(decision: AdmissionDecision, dir: &tempfile::TempDir) -> GatewayFixture {
    let fake = FakeChannel::new("lab");
    *fake.admission.lock().unwrap() = Some(Admission::new(decision).with_reason("says the test"));
    GatewayFixture::open(dir.path(), vec![fake]).await
}

// H-145: the outcome of a dropped message has the reason. The message is not recovered.
#[tokio::test(start_paused = true)]
async fn a_dropped_message_has_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = fixture(AdmissionDecision::Drop, &dir).await;
    let receipt = fixture.channel(0).say("a", "hi").await.unwrap();
    assert_eq!(dropped(&receipt.outcome().await), "says the test");
    fixture.stop().await;
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    assert_eq!(fixture.recovered.messages, 0);
    fixture.stop().await;
}

// H-145: `process` runs turns concurrently because the hook asks for it; `follow_up` queues. Also checks the snapshot.
#[tokio::test(start_paused = true)]
async fn process_overlaps_and_follow_up_waits() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = fixture(AdmissionDecision::Process, &dir).await;
    let channel = fixture.channel(0);
    channel.say("a", "wait 1").await.unwrap();
    channel.say("a", "wait 2").await.unwrap();
    fixture.echo.wait_asked(2).await;
    *channel.admission.lock().unwrap() = Some(Admission::new(AdmissionDecision::FollowUp));
    channel.say("a", "3").await.unwrap();
    let last = channel.say("a", "4").await.unwrap();
    fixture.echo.permits.add_permits(2);
    last.outcome().await;
    assert_eq!(
        fixture.echo.asked.borrow().clone(),
        ["wait 1", "wait 2", "3", "4"]
    );
    let snapshot = |running, pending| TurnSnapshot {
        session_id: "lab:a".into(),
        is_running: running > 0,
        running_count: running,
        pending_count: pending,
        steering_count: 0,
    };
    let expected = [
        snapshot(0, 0),
        snapshot(1, 0),
        snapshot(2, 0),
        snapshot(2, 1),
    ];
    assert_eq!(channel.snapshots.lock().unwrap().clone(), expected);
    fixture.stop().await;
}

// H-145, H-146: a steering message is part of the running turn and finishes with it.
#[tokio::test(start_paused = true)]
async fn a_steered_message_is_answered_by_the_running_turn() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = fixture(AdmissionDecision::Steer, &dir).await;
    fixture.echo.take_steering.store(true, Ordering::SeqCst);
    let channel = fixture.channel(0);
    let first = channel.say("a", "wait").await.unwrap();
    fixture.echo.wait_asked(1).await;
    let second = channel.say("a", "more").await.unwrap();
    fixture.echo.inbox.arrived.notified().await;
    fixture.echo.permits.add_permits(1);
    assert_eq!(replies(&first.outcome().await), 1);
    assert_eq!(joined(&second.outcome().await), first.message_id().unwrap());
    assert_eq!(channel.contents(), ["echo: wait + more"]);
    fixture.stop().await;
}

// H-146, W-51: steering messages that the turn did not read get their own turns, in order and before others.
#[tokio::test(start_paused = true)]
async fn leftovers_become_turns() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = fixture(AdmissionDecision::Steer, &dir).await;
    let channel = fixture.channel(0);
    channel.say("a", "wait").await.unwrap();
    fixture.echo.wait_asked(1).await;
    for text in ["1", "2"] {
        channel.say("a", text).await.unwrap();
        fixture.echo.inbox.arrived.notified().await;
    }
    *channel.admission.lock().unwrap() = None;
    let last = channel.say("a", "3").await.unwrap();
    fixture.echo.permits.add_permits(1);
    last.outcome().await;
    assert_eq!(fixture.echo.asked.borrow().clone(), ["wait", "1", "2", "3"]);
    fixture.stop().await;
}

// A message can steer only a turn of the same sender. A command steers no turn.
#[tokio::test(start_paused = true)]
async fn nobody_rides_in_the_turn_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = fixture(AdmissionDecision::Steer, &dir).await;
    fixture.echo.take_steering.store(true, Ordering::SeqCst);
    let channel = fixture.channel(0);
    channel.say("a", "wait").await.unwrap();
    fixture.echo.wait_asked(1).await;
    let member = channel
        .say_as((Role::Member, "bob"), "a", "by a member", None)
        .await
        .unwrap();
    let same_id = channel
        .say_as((Role::Member, "ada"), "a", "by a lesser self", None)
        .await
        .unwrap();
    let command = channel.say("a", ",help").await.unwrap();
    fixture.echo.permits.add_permits(1);
    for receipt in [member, same_id, command] {
        assert_eq!(replies(&receipt.outcome().await), 1);
    }
    let contents = channel.contents();
    assert_eq!(
        contents,
        [
            "echo: wait",
            "echo: by a member",
            "echo: by a lesser self",
            "echo: ,help"
        ]
    );
    fixture.stop().await;
}
