//! A gateway in an embedding program, with its own channels and a journal in memory.

use std::{path::Path, sync::Arc};

use bub_gateway::{Gateway, GatewayOptions, JournalKind, testing};
use bub_kernel::{
    CancellationToken, Channel, ChannelMessage, Envelope, Framework, MessageOutcome, Role, hooks,
};
use bub_tape::{EntryRange, MemoryStore};

use crate::harness::{Echo, FakeChannel, replies};

/// Panics if channels are requested. Renders several replies for `many`.
struct Renderer;

#[hooks(crate = bub_kernel)]
impl Renderer {
    fn provide_channels(&self) -> Vec<Arc<dyn Channel>> {
        panic!("channels are not requested")
    }

    fn render_outbound(&self, message: &Envelope) -> Vec<Envelope> {
        if message.content() != "many" {
            return Vec::new();
        }
        let to = |channel: &str, text: &str| Envelope::from_text(text).with("channel", channel);
        vec![
            to("mail", "for another channel"),
            Envelope::from_text("for no channel"),
            to("term", "without output").without_output(),
            to("term", "for this channel"),
        ]
    }
}

/// Runs one message, as `bub run` does.
async fn run(
    workspace: &Path,
    catch_all: Option<&str>,
    message: ChannelMessage,
) -> (MessageOutcome, Vec<String>, Echo, Framework) {
    let term = Arc::new(FakeChannel::new("term"));
    let mut echo = Echo::new(Vec::new());
    echo.tapes = Some(Arc::new(MemoryStore::new()));
    let framework = Framework::builder()
        .workspace(workspace)
        .plugin("renderer", Renderer)
        .plugin("echo", echo.clone())
        .build();
    let running = framework.open_scope().await.unwrap();
    let options = GatewayOptions {
        catch_all: catch_all.map(str::to_owned),
        ..testing::options(JournalKind::Memory)
    };
    let gateway = Gateway::with_channels(&framework, options, |handler| {
        let _ = term.handler.set(Arc::clone(handler));
        vec![Arc::clone(&term) as Arc<dyn Channel>]
    });
    let gateway = gateway.unwrap();
    assert_eq!(gateway.channel_names(), ["term"]);
    let (stop, handle) = (CancellationToken::new(), gateway.handle());
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    let client = async {
        // Messages are rejected before the gateway is ready.
        let early = ChannelMessage::new("term:a", "term", "early").chat_id("a");
        let early = term.hand_in(early, Role::Owner, "ada", None).await;
        assert!(early.unwrap_err().message().contains("not running"));
        is_ready.await.unwrap();
        let receipt = term.hand_in(message, Role::Owner, "ada", None).await;
        let outcome = receipt.unwrap().outcome().await;
        // A message outside a turn does not go to the catch-all channel.
        let router = framework.router().unwrap();
        let stray = Envelope::from_text("stray").with("channel", "mail");
        assert!(!router.dispatch(stray.into()).await.unwrap());
        stop.cancel();
        outcome
    };
    let (outcome, served) = tokio::join!(
        client,
        gateway.run(stop.clone(), || ready.send(()).unwrap())
    );
    served.unwrap();
    assert!(handle.is_settled());
    running.close().await.unwrap();
    (outcome, term.contents(), echo, framework)
}

// Design §2: a message of `bub run` goes through the gateway and leaves only its tape.
#[tokio::test]
async fn a_message_runs_through_a_journal_in_memory() {
    let workspace = tempfile::tempdir().unwrap();
    // The message claims another channel; the catch-all channel gets the replies.
    let message = ChannelMessage::new("mail:a", "mail", "hi").chat_id("a");
    let (outcome, sent, echo, framework) = run(workspace.path(), Some("term"), message).await;
    let MessageOutcome::Done {
        replies: 1,
        report: Some(report),
    } = outcome
    else {
        panic!("{outcome:?}")
    };
    assert_eq!(
        (report.session_id.as_str(), report.output.as_str()),
        ("mail:a", "echo: hi")
    );
    assert!(report.error.is_none());
    assert_eq!(sent, ["echo: hi"]);
    let attempt = echo.attempts.lock().unwrap()[0].clone();
    assert_eq!((attempt.number, attempt.is_durable), (1, false));
    let running = framework.open_scope().await.unwrap();
    let tape = framework.session_tape(&"mail:a".into()).unwrap().unwrap();
    let entries = tape.entries(EntryRange::ALL).await.unwrap();
    let is_start = |entry: &bub_tape::Entry| format!("{:?}", entry.payload).contains("turn.start");
    assert!(
        entries.iter().any(is_start),
        "only the tape shows that a turn was interrupted"
    );
    running.close().await.unwrap();
    let files = std::fs::read_dir(workspace.path()).unwrap();
    assert_eq!(files.count(), 0);
}

// The catch-all channel gets only plain replies of turns, and only those with output.
#[tokio::test]
async fn plain_replies_for_other_channels_go_to_the_one_that_catches_all() {
    let workspace = tempfile::tempdir().unwrap();
    let cases: [(_, &[&str]); 2] = [
        (None, &["for this channel"]),
        (
            Some("term"),
            &["for another channel", "for no channel", "for this channel"],
        ),
    ];
    for (catch_all, expected) in cases {
        let message = ChannelMessage::new("term:a", "term", "many").chat_id("a");
        let (outcome, mut sent, ..) = run(workspace.path(), catch_all, message).await;
        assert_eq!(
            replies(&outcome),
            1,
            "only replies through the same channel count"
        );
        sent.sort();
        assert_eq!(sent, expected);
    }
}
