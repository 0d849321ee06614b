//! A gateway of an embedding program: its own channels, and a journal in memory.

use std::{path::Path, sync::Arc};

use bub_gateway::{Gateway, GatewayOptions, JournalKind};
use bub_kernel::{
    CancellationToken, Channel, ChannelMessage, Envelope, Framework, MessageOutcome, Role, hooks,
};
use bub_tape::{EntryRange, MemoryStore};

use crate::harness::{Echo, FakeChannel, FakeHandle, options_with, replies};

/// Fails when it is asked for channels. Answers `many` in several ways.
struct Renderer;

#[hooks(crate = bub_kernel)]
impl Renderer {
    fn provide_channels(&self) -> Vec<Arc<dyn Channel>> {
        panic!("nobody asks for channels")
    }

    fn render_outbound(&self, message: &Envelope) -> Vec<Envelope> {
        if message.content() != "many" {
            return Vec::new();
        }
        let to = |channel: &str, text: &str| Envelope::text(text).with("channel", channel);
        vec![
            to("mail", "for another channel"),
            Envelope::text("for no channel"),
            to("term", "for nobody").without_output(),
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
    let running = framework.running().await.unwrap();
    let options = GatewayOptions {
        catch_all: catch_all.map(str::to_owned),
        ..options_with(JournalKind::Memory)
    };
    let gateway = Gateway::with_channels(&framework, options, |handler| {
        let _ = term.handler.set(Arc::clone(handler));
        vec![Arc::new(FakeHandle(Arc::clone(&term)))]
    });
    let gateway = gateway.unwrap();
    assert_eq!(gateway.channels(), ["term"]);
    let (stop, remote) = (CancellationToken::new(), gateway.remote());
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    let talking = async {
        // Nothing is accepted before the gateway says so.
        let early = ChannelMessage::new("term:a", "term", "early").chat_id("a");
        let early = term.hand_in(early, Role::Owner, "ada", None).await;
        assert!(early.unwrap_err().message().contains("not running"));
        is_ready.await.unwrap();
        let receipt = term.hand_in(message, Role::Owner, "ada", None).await;
        let outcome = receipt.unwrap().outcome().await;
        // What nobody's turn says is not caught.
        let router = framework.router().unwrap();
        let stray = Envelope::text("stray").with("channel", "mail");
        assert!(!router.dispatch(stray.into()).await.unwrap());
        stop.cancel();
        outcome
    };
    let (outcome, served) = tokio::join!(
        talking,
        gateway.run(stop.clone(), || ready.send(()).unwrap())
    );
    served.unwrap();
    assert!(remote.is_settled());
    running.close().await.unwrap();
    (outcome, term.contents(), echo, framework)
}

// Design §2: one path: a message of `bub run` goes through the gateway, and leaves nothing but its tape.
#[tokio::test]
async fn a_message_runs_through_a_journal_in_memory() {
    let workspace = tempfile::tempdir().unwrap();
    // As if it came from another channel: the replies are shown here.
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
    let running = framework.running().await.unwrap();
    let tape = framework.session_tape(&"mail:a".into()).unwrap().unwrap();
    let entries = tape.entries(EntryRange::ALL).await.unwrap();
    let is_start = |entry: &bub_tape::Entry| format!("{:?}", entry.payload).contains("turn.start");
    assert!(
        entries.iter().any(is_start),
        "only the tape can say that it was interrupted"
    );
    running.close().await.unwrap();
    let files = std::fs::read_dir(workspace.path()).unwrap();
    assert_eq!(files.count(), 0);
}

// Only plain replies of turns are caught, and only those that may go somewhere.
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
        assert_eq!(replies(&outcome), 1, "those by its own channel");
        sent.sort();
        assert_eq!(sent, expected);
    }
}
