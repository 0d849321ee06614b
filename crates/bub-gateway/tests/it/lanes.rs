//! One ordered lane for each session.

use bub_kernel::{ErrorKind, Role};

use crate::harness::{Echo, FakeChannel, GatewayFixture, dropped, options, replies};

// W-11: turns of one session run one after the other, in the order of arrival.
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
        let said: Vec<_> = sent
            .iter()
            .filter(|sent| sent.chat == chat)
            .map(|sent| &sent.content)
            .collect();
        assert_eq!(
            said,
            ["echo: 0", "echo: 1", "echo: 2", "echo: 3", "echo: 4"]
        );
    }
    // Also when the first takes its time: the next is not even begun.
    channel.say("a", "wait").await.unwrap();
    fixture.echo.wait_asked(16).await;
    channel.say("a", "later").await.unwrap();
    channel.say("b", "meanwhile").await.unwrap().outcome().await;
    assert_eq!(fixture.echo.asked.borrow()[15..], ["wait", "meanwhile"]);
    fixture.echo.permits.add_permits(1);
    let sent = channel.wait_sent(18).await;
    let said: Vec<_> = sent[15..]
        .iter()
        .map(|sent| sent.content.as_str())
        .collect();
    assert_eq!(said, ["echo: meanwhile", "echo: wait", "echo: later"]);
    fixture.stop().await;
}

// Issue: a session that hangs forever delays nobody else. W-52.
#[tokio::test(start_paused = true)]
async fn a_session_that_hangs_delays_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let channel = fixture.channel(0);
    channel.say("stuck", "wait forever").await.unwrap();
    fixture.echo.wait_asked(1).await;
    for number in 0..20 {
        let ticket = channel.say(&format!("chat{number}"), "hi").await.unwrap();
        assert_eq!(replies(&ticket.outcome().await), 1);
    }
    fixture.echo.permits.add_permits(1);
    fixture.stop().await;
}

// W-70: a full session refuses, says why, and takes again when there is room; nothing is dropped silently.
#[tokio::test(start_paused = true)]
async fn a_full_session_refuses_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let options = bub_gateway::GatewayOptions {
        session_queue: 3,
        ..options(dir.path())
    };
    let fixture = GatewayFixture::with(options, Echo::new(vec![FakeChannel::new("lab")])).await;
    let channel = fixture.channel(0);
    let mut tickets = Vec::new();
    for text in ["wait", "1", "2"] {
        tickets.push(channel.say("a", text).await.unwrap());
    }
    let refused = channel.say("a", "3").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::SessionFull);
    assert!(
        refused
            .message()
            .contains("3 messages of this session wait"),
        "{refused}"
    );
    assert!(refused.retry_after().is_some());
    channel.say("b", "others go on").await.unwrap();
    // What needs no room, and what makes some, is taken all the same.
    channel.say("a", ",approve").await.unwrap();
    let told = channel.wait_sent(2).await;
    assert!(
        told.iter()
            .any(|sent| sent.content.starts_with("Say which: `,approve ID`")),
        "{told:?}"
    );
    fixture.echo.permits.add_permits(1);
    for ticket in tickets {
        assert_eq!(replies(&ticket.outcome().await), 1);
    }
    for text in ["wait", "1", "2"] {
        channel.say("a", text).await.unwrap();
    }
    let quit = channel.say("a", ",quit").await.unwrap();
    assert_eq!(replies(&quit.outcome().await), 1);
    fixture.stop().await;
}

// The limit of a session holds also when messages arrive at the same time; each is accepted and answered, or refused.
#[tokio::test(start_paused = true)]
async fn messages_that_arrive_together_do_not_exceed_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let options = bub_gateway::GatewayOptions {
        session_queue: 3,
        ..options(dir.path())
    };
    let fixture = GatewayFixture::with(options, Echo::new(vec![FakeChannel::new("lab")])).await;
    let channel = fixture.channel(0);
    let texts: Vec<_> = (0..50).map(|number| format!("wait {number}")).collect();
    let all = texts.iter().map(|text| channel.say("a", text));
    let all = futures_util::future::join_all(all).await;
    let (accepted, refused): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
    assert_eq!((accepted.len(), refused.len()), (3, 47));
    for refused in refused {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::SessionFull);
    }
    // So does that of `,quit`, which has room of its own.
    let quits = futures_util::future::join_all((0..50).map(|_| channel.say("a", ",quit"))).await;
    let accepted_quits = quits.iter().filter(|quit| quit.is_ok()).count();
    assert_eq!(accepted_quits, 16);
    for accepted in accepted {
        let outcome = accepted.unwrap().outcome().await;
        assert_eq!(dropped(&outcome), "the session was quit");
    }
    // A place that was not used is given back.
    channel.say("a", "room again").await.unwrap();
    fixture.stop().await;
}

// W-70: the gateway as a whole is bounded too.
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
        refused.message().contains("too many messages wait"),
        "{refused}"
    );
    let waiting = channel.say("c", "hi");
    fixture.echo.permits.add_permits(2);
    waiting.await.unwrap();
    fixture.stop().await;
}

// W-70: turns have a limit too; what waits for one is cancelled like what runs, and nothing is lost.
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
    let given_up = channel.say("c", "3").await.unwrap();
    let quit = channel.say("c", ",quit").await.unwrap();
    assert_eq!(dropped(&given_up.outcome().await), "the session was quit");
    assert_eq!(replies(&quit.outcome().await), 1);
    assert!(
        !fixture.echo.wait_asked(2).await.contains(&"2".to_owned()),
        "there is no room for it"
    );
    fixture.echo.permits.add_permits(1);
    for ticket in [running, waiting] {
        assert_eq!(replies(&ticket.outcome().await), 1);
    }
    fixture.stop().await;
}

// H-147, W-53: quit ends what runs and waits in its session, and nothing else.
#[tokio::test(start_paused = true)]
async fn quit_stops_one_session_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let channel = fixture.channel(0);
    let running = channel.say("a", "wait 1").await.unwrap();
    let pending = channel.say("a", "2").await.unwrap();
    let other = channel.say("b", "wait 3").await.unwrap();
    fixture.echo.wait_asked(2).await;
    // Whom nobody let in cannot quit: the message waits like any other.
    channel
        .say_as((Role::Guest, "eve"), "a", ",quit", None)
        .await
        .unwrap();
    tokio::task::yield_now().await;
    let quit = channel.say("a", ",quit").await.unwrap();
    for ticket in [running, pending] {
        assert_eq!(dropped(&ticket.outcome().await), "the session was quit");
    }
    assert_eq!(replies(&quit.outcome().await), 1);
    fixture.echo.permits.add_permits(1);
    assert_eq!(replies(&other.outcome().await), 1);
    fixture.stop().await;
}

// L1: a turn that fails is done once its person was told, by the lane when nobody else could; the session goes on.
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
    assert!(sent[0].content.contains("is not answered"), "{sent:?}");
    assert_eq!(sent[0].message_id.as_ref(), failed.message_id());
    fixture.stop().await;
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    assert_eq!(fixture.recovered.messages, 0);
    fixture.stop().await;
}

// H-142: a message for a channel that is not there is refused.
#[tokio::test(start_paused = true)]
async fn a_message_of_an_unknown_channel_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let message = bub_kernel::Envelope::text("hi")
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

// The same key, the same message: it is taken once, whoever sends it again.
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
