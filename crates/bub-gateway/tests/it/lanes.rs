//! Each session has one lane that keeps the order of its messages.

use bub_kernel::{ErrorKind, Role};

use crate::harness::{Echo, FakeChannel, GatewayFixture, dropped, options, replies};

// W-11: the turns of one session run sequentially, in order of arrival.
#[tokio::test(start_paused = true)]
async fn messages_of_a_session_are_answered_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let channel = fixture.channel(0);
    for number in 0..5 {
        for chat in ["a", "b", "c"] {
            channel.say(chat, &format!("{number}")).await.unwrap();
        }
    }
    let sent = channel.wait_sent(15).await;
    for chat in ["a", "b", "c"] {
        let contents: Vec<_> = sent
            .iter()
            .filter(|sent| sent.chat == chat)
            .map(|sent| &sent.content)
            .collect();
        assert_eq!(
            contents,
            ["echo: 0", "echo: 1", "echo: 2", "echo: 3", "echo: 4"]
        );
    }
    // Also if the first turn is slow: the next one does not start.
    channel.say("a", "wait").await.unwrap();
    fixture.echo.wait_asked(16).await;
    channel.say("a", "later").await.unwrap();
    channel.say("b", "meanwhile").await.unwrap().outcome().await;
    assert_eq!(fixture.echo.asked.borrow()[15..], ["wait", "meanwhile"]);
    fixture.echo.permits.add_permits(1);
    let sent = channel.wait_sent(18).await;
    let contents: Vec<_> = sent[15..]
        .iter()
        .map(|sent| sent.content.as_str())
        .collect();
    assert_eq!(contents, ["echo: meanwhile", "echo: wait", "echo: later"]);
    fixture.stop().await;
}

// W-52: a session that hangs forever does not delay others.
#[tokio::test(start_paused = true)]
async fn a_session_that_hangs_delays_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let channel = fixture.channel(0);
    channel.say("stuck", "wait forever").await.unwrap();
    fixture.echo.wait_asked(1).await;
    for number in 0..20 {
        let receipt = channel.say(&format!("chat{number}"), "hi").await.unwrap();
        assert_eq!(replies(&receipt.outcome().await), 1);
    }
    fixture.echo.permits.add_permits(1);
    fixture.stop().await;
}

// W-70: a full session rejects messages with a reason and accepts them again later. Nothing is dropped silently.
#[tokio::test(start_paused = true)]
async fn a_full_session_refuses_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let options = bub_gateway::GatewayOptions {
        session_queue: 3,
        ..options(dir.path())
    };
    let fixture = GatewayFixture::with(options, Echo::new(vec![FakeChannel::new("lab")])).await;
    let channel = fixture.channel(0);
    let mut receipts = Vec::new();
    for text in ["wait", "1", "2"] {
        receipts.push(channel.say("a", text).await.unwrap());
    }
    let refused = channel.say("a", "3").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::SessionFull);
    assert!(
        refused
            .message()
            .contains("session queue is full: 3 messages are queued"),
        "{refused}"
    );
    assert!(refused.retry_after().is_some());
    channel.say("b", "others go on").await.unwrap();
    // Approvals need no capacity and `,quit` frees some, so both are accepted.
    channel.say("a", ",approve").await.unwrap();
    let sent = channel.wait_sent(2).await;
    assert!(
        sent.iter().any(|sent| sent
            .content
            .starts_with("Specify the request: `,approve ID [session|always]`")),
        "{sent:?}"
    );
    fixture.echo.permits.add_permits(1);
    for receipt in receipts {
        assert_eq!(replies(&receipt.outcome().await), 1);
    }
    for text in ["wait", "1", "2"] {
        channel.say("a", text).await.unwrap();
    }
    let quit = channel.say("a", ",quit").await.unwrap();
    assert_eq!(replies(&quit.outcome().await), 1);
    fixture.stop().await;
}

// The limit of a session also holds for concurrent messages. Each is either accepted and answered, or rejected.
#[tokio::test(start_paused = true)]
async fn messages_that_arrive_together_do_not_exceed_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let options = bub_gateway::GatewayOptions {
        session_queue: 3,
        ..options(dir.path())
    };
    let fixture = GatewayFixture::with(options, Echo::new(vec![FakeChannel::new("lab")])).await;
    let channel = fixture.channel(0);
    let texts: Vec<_> = (1..50).map(|number| format!("wait {number}")).collect();
    let texts = ["ponder wait"]
        .into_iter()
        .chain(texts.iter().map(String::as_str));
    let all = texts.map(|text| channel.say("a", text));
    let all = futures_util::future::join_all(all).await;
    let (accepted, refused): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
    assert_eq!((accepted.len(), refused.len()), (3, 47));
    for refused in refused {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::SessionFull);
    }
    // `,quit` has a separate limit. The lane is still deciding about the first message, so all of them wait.
    let quits = futures_util::future::join_all((0..50).map(|_| channel.say("a", ",quit"))).await;
    let accepted_quits = quits.iter().filter(|quit| quit.is_ok()).count();
    assert_eq!(accepted_quits, 16);
    fixture.echo.permits.add_permits(1);
    for accepted in accepted {
        let outcome = accepted.unwrap().outcome().await;
        assert_eq!(dropped(&outcome), "the session was quit");
    }
    // Unused slots are freed.
    channel.say("a", "room again").await.unwrap();
    fixture.stop().await;
}

// W-70: the total number of messages is limited, too.
#[tokio::test(start_paused = true)]
async fn a_full_gateway_lets_messages_wait_and_then_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let options = bub_gateway::GatewayOptions {
        queue: 2,
        ..options(dir.path())
    };
    let fixture = GatewayFixture::with(options, Echo::new(vec![FakeChannel::new("lab")])).await;
    let channel = fixture.channel(0);
    channel.say("a", "wait").await.unwrap();
    channel.say("b", "wait").await.unwrap();
    let refused = channel.say("c", "hi").await.unwrap_err();
    assert!(
        refused
            .message()
            .contains("too many messages are unfinished; try again later"),
        "{refused}"
    );
    let waiting = channel.say("c", "hi");
    fixture.echo.permits.add_permits(2);
    waiting.await.unwrap();
    fixture.stop().await;
}

// W-70: the number of turns is limited. A message that waits for a turn can be cancelled, and nothing is lost.
#[tokio::test(start_paused = true)]
async fn turns_wait_for_room() {
    let dir = tempfile::tempdir().unwrap();
    let options = bub_gateway::GatewayOptions {
        turns: 1,
        ..options(dir.path())
    };
    let fixture = GatewayFixture::with(options, Echo::new(vec![FakeChannel::new("lab")])).await;
    let channel = fixture.channel(0);
    let running = channel.say("a", "wait 1").await.unwrap();
    fixture.echo.wait_asked(1).await;
    let waiting = channel.say("b", "2").await.unwrap();
    let queued = channel.say("c", "3").await.unwrap();
    let quit = channel.say("c", ",quit").await.unwrap();
    assert_eq!(dropped(&queued.outcome().await), "the session was quit");
    assert_eq!(replies(&quit.outcome().await), 1);
    assert!(
        !fixture.echo.wait_asked(2).await.contains(&"2".to_owned()),
        "the turn limit is reached"
    );
    fixture.echo.permits.add_permits(1);
    for receipt in [running, waiting] {
        assert_eq!(replies(&receipt.outcome().await), 1);
    }
    fixture.stop().await;
}

// H-147, W-53: `,quit` ends the running and queued messages of its session only.
#[tokio::test(start_paused = true)]
async fn quit_stops_one_session_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let channel = fixture.channel(0);
    let running = channel.say("a", "wait 1").await.unwrap();
    let pending = channel.say("a", "2").await.unwrap();
    let other = channel.say("b", "wait 3").await.unwrap();
    fixture.echo.wait_asked(2).await;
    // A guest cannot quit: the message is queued like any other.
    channel
        .say_as((Role::Guest, "eve"), "a", ",quit", None)
        .await
        .unwrap();
    tokio::task::yield_now().await;
    let quit = channel.say("a", ",quit").await.unwrap();
    for receipt in [running, pending] {
        assert_eq!(dropped(&receipt.outcome().await), "the session was quit");
    }
    assert_eq!(replies(&quit.outcome().await), 1);
    fixture.echo.permits.add_permits(1);
    assert_eq!(replies(&other.outcome().await), 1);
    fixture.stop().await;
}

// L4: a message whose reply was sent is answered, although `,quit` cancelled its turn while the reply was dispatched.
#[tokio::test(start_paused = true)]
async fn a_reply_that_is_sent_during_quit_answers_its_message() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let channel = fixture.channel(0);
    let held = channel.say("a", "hold").await.unwrap();
    fixture.echo.holding.notified().await;
    let quit = channel.say("a", ",quit").await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    fixture.echo.permits.add_permits(1);
    assert_eq!(replies(&held.outcome().await), 1);
    assert_eq!(replies(&quit.outcome().await), 1);
    let sent = channel.wait_sent(2).await;
    assert_eq!(sent[0].content, "echo: hold");
    fixture.stop().await;
}

// L1: a failed turn is finished once its sender was notified, if necessary by the lane. The session continues.
#[tokio::test(start_paused = true)]
async fn a_failed_turn_does_not_stop_its_session() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let channel = fixture.channel(0);
    let failed = channel.say("a", "fail").await.unwrap();
    let next = channel.say("a", "hi").await.unwrap();
    assert_eq!(replies(&failed.outcome().await), 1);
    assert_eq!(replies(&next.outcome().await), 1);
    let sent = channel.wait_sent(2).await;
    assert!(sent[0].content.contains("was not answered"), "{sent:?}");
    assert_eq!(sent[0].message_id.as_ref(), failed.message_id());
    fixture.stop().await;
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    assert_eq!(fixture.recovered.messages, 0);
    fixture.stop().await;
}

// H-142: a message of an unknown channel is rejected.
#[tokio::test(start_paused = true)]
async fn a_message_of_an_unknown_channel_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let message = bub_kernel::Envelope::from_text("hi")
        .with("channel", "nowhere")
        .with("chat_id", "a");
    let refused = fixture
        .channel(0)
        .hand_in(message, Role::Owner, "ada", None)
        .await
        .unwrap_err();
    assert!(refused.message().contains("nowhere"), "{refused}");
    fixture.stop().await;
}

// A message with a known idempotency key is accepted once.
#[tokio::test(start_paused = true)]
async fn an_idempotency_key_is_honoured_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let channel = fixture.channel(0);
    let say = |key| channel.say_as((Role::Owner, "ada"), "a", "hi", key);
    let (first, second) = tokio::join!(say(Some("k")), say(Some("k")));
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(first.message_id(), second.message_id());
    assert!(!first.is_duplicate() && second.is_duplicate());
    first.outcome().await;
    assert!(!say(Some("other")).await.unwrap().is_duplicate());
    let id = first.message_id().unwrap().clone();
    fixture.stop().await;
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let again = fixture
        .channel(0)
        .say_as((Role::Owner, "ada"), "a", "hi", Some("k"))
        .await
        .unwrap();
    assert!(again.is_duplicate());
    assert_eq!(again.message_id(), Some(&id));
    fixture.stop().await;
}
