//! Every turn records entries on the tape of its session.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use bub_kernel::{
    CancellationToken, ChannelMessage, Envelope, Error, Inbound, Prompt, Result, Stage, StatePatch,
    Turn, hooks,
};
use bub_tape::{Entry, EntryKind, EntryRange, LeaseWait, Tape, TapeName, ViewOptions};

use bub_testkit::model::{ModelServer, Reply};
use serde_json::Value;

use crate::{harness::AgentFixture, turn_crash::delivered_as};

pub(crate) fn tape_of(fixture: &AgentFixture, session_id: &str) -> Tape {
    let workspace = fixture.framework.workspace().to_string_lossy().into_owned();
    Tape::new(
        fixture.framework.tape_store().unwrap(),
        TapeName::for_session(&workspace, session_id),
    )
}

async fn kinds(tape: &Tape) -> Vec<String> {
    let entries = tape.entries(EntryRange::ALL).await.unwrap();
    entries
        .iter()
        .map(|entry| {
            entry.name().map_or(entry.kind.to_string(), |name| {
                format!("{} {name}", entry.kind)
            })
        })
        .collect()
}

// S-1: also if a plugin answers instead of the builtin agent.
#[tokio::test]
async fn a_turn_leaves_the_message_the_output_and_the_run() {
    let fixture = AgentFixture::echoing();
    let running = fixture.framework.open_scope().await.unwrap();
    let result = fixture
        .turn(ChannelMessage::new("s", "lab", "hi"))
        .await
        .unwrap();
    let tape = tape_of(&fixture, "s");
    assert_eq!(
        kinds(&tape).await,
        [
            "anchor session/start",
            "event handoff",
            "event turn.start",
            "message",
            "message",
            "event run"
        ]
    );
    let entries = tape.entries(EntryRange::ALL).await.unwrap();
    assert_eq!(entries[2].data().unwrap()["content"], "hi");
    assert_eq!(entries[3].payload["role"], "user");
    assert_eq!(entries[3].payload["content"], result.prompt.text());
    assert_eq!(entries[4].payload["content"], result.model_output);
    assert_eq!(entries[5].data().unwrap()["status"], "ok");
    running.close().await.unwrap();
}

// S-1, W-8: a failed turn leaves the user's message and the error.
#[tokio::test]
async fn a_failed_turn_leaves_the_message_and_the_error() {
    struct FailingPlugin;

    #[hooks(crate = bub_kernel)]
    impl FailingPlugin {
        fn run_model(&self) -> Result<String> {
            Err(Error::config("no key"))
        }
    }

    let fixture = AgentFixture::with_plugin("failing", FailingPlugin);
    let running = fixture.framework.open_scope().await.unwrap();
    fixture
        .turn(ChannelMessage::new("s", "lab", "hi"))
        .await
        .unwrap_err();
    let tape = tape_of(&fixture, "s");
    let entries = tape.entries(EntryRange::ALL).await.unwrap();
    let error = entries
        .iter()
        .find(|entry| entry.kind == EntryKind::Error)
        .unwrap();
    assert_eq!(
        (&error.payload["kind"], &error.payload["message"]),
        (&"config".into(), &"no key".into())
    );
    assert!(
        entries
            .iter()
            .any(|entry| entry.payload.get("role").is_some_and(|role| role == "user"))
    );
    assert_eq!(entries.last().unwrap().data().unwrap()["status"], "error");
    running.close().await.unwrap();
}

// W-71: a tape records its session and workspace.
#[tokio::test]
async fn the_tape_names_its_session() {
    let fixture = AgentFixture::echoing();
    let running = fixture.framework.open_scope().await.unwrap();
    fixture
        .turn(ChannelMessage::new("s", "lab", "hi"))
        .await
        .unwrap();
    let session = tape_of(&fixture, "s")
        .summary()
        .await
        .unwrap()
        .session
        .unwrap();
    assert_eq!(
        (session.session_id.as_str(), session.channel.as_deref()),
        ("s", Some("lab"))
    );
    running.close().await.unwrap();
}

// L4: the turns of one session run one after the other; each sees the tape as the previous one left it.
#[tokio::test]
async fn turns_of_one_session_do_not_overlap() {
    let fixture = AgentFixture::echoing();
    let running = fixture.framework.open_scope().await.unwrap();
    let turns =
        (0..8).map(|n| fixture.turn(ChannelMessage::new("s", "lab", format!("message {n}"))));
    for turn in futures_util::future::join_all(turns).await {
        turn.unwrap();
    }
    let kinds = kinds(&tape_of(&fixture, "s")).await;
    assert_eq!(kinds.len(), 2 + 8 * 4);
    for turn in kinds[2..].chunks(4) {
        assert_eq!(
            turn,
            ["event turn.start", "message", "message", "event run"]
        );
    }
    // The lease is free again.
    drop(tape_of(&fixture, "s").lease(LeaseWait::No).await.unwrap());
    running.close().await.unwrap();
}

// S-53: without a running scope there is no tape store, and the turn still works.
#[tokio::test]
async fn without_a_scope_nothing_is_recorded() {
    let fixture = AgentFixture::echoing();
    assert!(fixture.framework.tape_store().is_none());
    fixture
        .turn(ChannelMessage::new("s", "lab", "hi"))
        .await
        .unwrap();
    assert!(!fixture.dir.path().join("home").exists());
}

// L7: a secret that bub knows is never written to a tape, whatever its source.
#[tokio::test]
async fn secrets_are_not_recorded() {
    struct LeakingPlugin;

    #[hooks(crate = bub_kernel)]
    impl LeakingPlugin {
        fn run_model(&self, session_id: &str) -> Result<String> {
            match session_id {
                "fails" => {
                    Err(Error::config("refused")
                        .with_detail("header", "Bearer correct-horse-battery"))
                }
                _ => Ok("the key is correct-horse-battery".into()),
            }
        }
    }

    let fixture = AgentFixture::with_plugin("leaky", LeakingPlugin);
    let running = fixture.framework.open_scope().await.unwrap();
    for session_id in ["fails", "answers"] {
        let channel = "lab of correct-horse-battery";
        let _ = fixture
            .turn(ChannelMessage::new(
                session_id,
                channel,
                "is correct-horse-battery right?",
            ))
            .await;
        let entries = tape_of(&fixture, session_id)
            .entries(EntryRange::ALL)
            .await
            .unwrap();
        assert!(entries.len() > 4);
        let text = format!("{entries:?}");
        assert!(
            text.contains("***") && !text.contains("correct-horse"),
            "{text}"
        );
    }
    running.close().await.unwrap();
}

/// Fails in one stage, or waits there until the turn is cancelled. It keeps every turn it has seen.
#[derive(Clone)]
struct FailingPlugin {
    stage: Stage,
    error: Option<&'static str>,
    entered: CancellationToken,
    turns: Arc<Mutex<Vec<Turn>>>,
}

impl FailingPlugin {
    fn new(stage: Stage, error: Option<&'static str>) -> Self {
        Self {
            stage,
            error,
            entered: CancellationToken::new(),
            turns: Arc::default(),
        }
    }

    async fn enter(&self, turn: &Turn) -> Result<()> {
        self.turns.lock().unwrap().push(turn.clone());
        if turn.stage() != self.stage {
            return Ok(());
        }
        self.entered.cancel();
        match self.error {
            Some(error) => Err(Error::config(error)),
            None => std::future::pending().await,
        }
    }
}

#[hooks(crate = bub_kernel)]
impl FailingPlugin {
    async fn load_state(&self, turn: &Turn) -> Result<Option<StatePatch>> {
        self.enter(turn).await.map(|()| None)
    }

    async fn build_prompt(&self, turn: &Turn) -> Result<Option<Prompt>> {
        self.enter(turn).await.map(|()| None)
    }

    async fn render_outbound(&self, turn: &Turn) -> Result<Vec<Envelope>> {
        self.enter(turn).await.map(|()| Vec::new())
    }
}

/// Returns the user's messages and the errors on a tape.
async fn messages_and_errors(tape: &Tape) -> (Vec<String>, Vec<String>) {
    let entries = tape.entries(EntryRange::ALL).await.unwrap();
    let texts = |kind: EntryKind, field: &str| -> Vec<String> {
        let matches = entries.iter().filter(|entry| entry.kind == kind);
        matches
            .filter(|entry| kind == EntryKind::Error || entry.payload["role"] == "user")
            .map(|entry| entry.payload[field].as_str().unwrap().to_owned())
            .collect()
    };
    (
        texts(EntryKind::Message, "content"),
        texts(EntryKind::Error, "message"),
    )
}

// S-1, L1: a turn that fails or is cancelled before its model stage leaves the message and the error, each once. Its
// session is free, also if a plugin keeps the turn.
#[tokio::test]
async fn a_turn_that_ends_early_is_recorded_once_and_frees_its_session() {
    for stage in [Stage::LoadState, Stage::BuildPrompt] {
        for error in [Some("cannot go on"), None] {
            let failing = FailingPlugin::new(stage, error);
            let fixture = AgentFixture::with_plugin("failing", failing.clone());
            let running = fixture.framework.open_scope().await.unwrap();
            let message = Inbound::from(ChannelMessage::new("s", "lab", "hi"));
            let cancel = message.cancel.clone();
            let canceller = async {
                failing.entered.cancelled().await;
                if error.is_none() {
                    cancel.cancel();
                }
            };
            let (outcome, ()) = tokio::join!(fixture.turn(message), canceller);
            let expected = error.unwrap_or("the turn was cancelled");
            assert_eq!(outcome.unwrap_err().message(), expected, "{stage:?}");
            let tape = tape_of(&fixture, "s");
            let recorded = messages_and_errors(&tape).await;
            let expected = (vec!["hi".to_owned()], vec![expected.to_owned()]);
            assert_eq!(recorded, expected, "{stage:?}");
            assert!(!failing.turns.lock().unwrap().is_empty());
            drop(tape.lease(LeaseWait::No).await.unwrap());
            running.close().await.unwrap();
        }
    }
}

// The message of an early failure is part of the conversation: the next turn shows it to the model.
#[tokio::test]
async fn the_next_turn_sees_the_message_of_one_that_failed_early() {
    let fixture = AgentFixture::with_plugin(
        "failing",
        FailingPlugin::new(Stage::BuildPrompt, Some("odd")),
    );
    let running = fixture.framework.open_scope().await.unwrap();
    let message = ChannelMessage::new("s", "lab", "remember 42");
    fixture.turn(message).await.unwrap_err();
    let view = tape_of(&fixture, "s").view(&ViewOptions::new()).await;
    let messages = view.unwrap().messages;
    let is_shown = |message: &serde_json::Map<String, serde_json::Value>| {
        message["role"] == "user" && message["content"] == "remember 42"
    };
    assert!(messages.iter().any(is_shown), "{messages:?}");
    running.close().await.unwrap();
}

// W-8: a failure after the model stage is recorded after the answer, which stays.
#[tokio::test]
async fn a_failure_after_the_answer_is_recorded_behind_it() {
    let failing = FailingPlugin::new(Stage::Render, Some("cannot render"));
    let fixture = AgentFixture::echoing_with("failing", failing);
    let running = fixture.framework.open_scope().await.unwrap();
    let message = ChannelMessage::new("s", "lab", "hi");
    fixture.turn(message).await.unwrap_err();
    let tape = tape_of(&fixture, "s");
    assert_eq!(
        kinds(&tape).await[2..],
        [
            "event turn.start",
            "message",
            "message",
            "event run",
            "error"
        ]
    );
    drop(tape.lease(LeaseWait::No).await.unwrap());
    running.close().await.unwrap();
}

// S-1: the answer of a plugin is on the tape, once, before it is rendered, also if another plugin fails to save its
// state.
#[tokio::test]
async fn the_answer_of_a_plugin_is_recorded_before_it_is_rendered() {
    struct SavingPlugin(Arc<Mutex<Vec<usize>>>, bool);

    #[hooks(crate = bub_kernel)]
    impl SavingPlugin {
        fn save_state(&self) -> Result<()> {
            if self.1 {
                return Err(Error::config("the disk is full"));
            }
            Ok(())
        }

        async fn render_outbound(&self, turn: &Turn) -> Result<Option<Envelope>> {
            let entries = turn.tape().tape().entries(EntryRange::ALL).await?;
            let is_answer = |entry: &&Entry| {
                entry
                    .payload
                    .get("role")
                    .is_some_and(|role| role == "assistant")
            };
            let count = entries.iter().filter(is_answer).count();
            self.0.lock().unwrap().push(count);
            Ok(None)
        }
    }

    for fails in [false, true] {
        let seen = Arc::default();
        let fixture = AgentFixture::echoing_with("saving", SavingPlugin(Arc::clone(&seen), fails));
        let running = fixture.framework.open_scope().await.unwrap();
        let outcome = fixture.turn(ChannelMessage::new("s", "lab", "hi")).await;
        assert_eq!(outcome.is_err(), fails);
        assert_eq!(seen.lock().unwrap().len(), usize::from(!fails));
        assert!(seen.lock().unwrap().iter().all(|count| *count == 1));
        let tape = tape_of(&fixture, "s");
        let mut expected = vec!["message", "message", "event run"];
        expected.extend(fails.then_some("error"));
        assert_eq!(kinds(&tape).await[3..], expected);
        drop(tape.lease(LeaseWait::No).await.unwrap());
        running.close().await.unwrap();
    }
}

// The partial answer is on the tape if the turn fails.
#[tokio::test]
async fn half_an_answer_is_recorded() {
    struct InterruptedPlugin;

    #[hooks(crate = bub_kernel)]
    impl InterruptedPlugin {
        fn run_model_stream(&self) -> bub_kernel::ModelStream {
            let events = [
                Ok(bub_kernel::StreamEvent::Text("half an answer".into())),
                Err(Error::unknown("cut")),
            ];
            bub_kernel::ModelStream::new(futures_util::stream::iter(events))
        }
    }

    let fixture = AgentFixture::with_plugin("breaking", InterruptedPlugin);
    let running = fixture.framework.open_scope().await.unwrap();
    fixture
        .turn(ChannelMessage::new("s", "lab", "hi"))
        .await
        .unwrap_err();
    let entries = tape_of(&fixture, "s")
        .entries(EntryRange::ALL)
        .await
        .unwrap();
    assert!(format!("{entries:?}").contains("half an answer"));
    running.close().await.unwrap();
}

// S-59: one directory is one workspace, whatever its spelling.
#[tokio::test]
async fn a_workspace_has_one_name() {
    let dir = tempfile::TempDir::new().unwrap();
    std::fs::create_dir_all(dir.path().join("real/sub")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("real"), dir.path().join("link")).unwrap();
    let text = |path: &str| {
        bub_kernel::Framework::builder()
            .workspace(dir.path().join(path))
            .build()
            .workspace_text()
            .to_owned()
    };
    for spelling in ["real/", "real/sub/..", "link", "./real"] {
        assert_eq!(text(spelling), text("real"), "{spelling}");
    }
}

// L5: a conversation of twenty turns, each with a question and a short answer, takes little space.
#[tokio::test]
async fn twenty_turns_take_at_most_35_kilobytes() {
    let server = ModelServer::start();
    server.otherwise(Reply::text(
        "It reads the file, splits it into lines and returns the longest one. It fails if the file is empty.",
    ));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    for number in 1..=20 {
        let question = format!("What does function {number} in src/main.rs do, and can it fail?");
        let message = delivered_as(&format!("in-{number}"), &question, 1);
        fixture.turn(message).await.unwrap();
    }
    let name = tape_of(&fixture, "s").name().to_string();
    let path = format!("home/tapes/{name}.jsonl");
    let text = std::fs::read_to_string(fixture.dir.path().join(path)).unwrap();
    let mut sizes = BTreeMap::<String, usize>::new();
    for line in text.lines() {
        let entry: Value = serde_json::from_str(line).unwrap();
        let payload = &entry["payload"];
        let name = payload["name"].as_str().or(payload["role"].as_str());
        *sizes
            .entry(name.unwrap_or("system").to_owned())
            .or_default() += line.len() + 1;
    }
    // P-132: no event is missing.
    let names: Vec<&str> = sizes.keys().map(String::as_str).collect();
    let expected =
        "assistant handoff loop.start loop.step loop.step.start run session/start system user";
    assert_eq!(names.join(" "), expected);
    assert!(text.len() <= 35_000, "{} bytes: {sizes:?}", text.len());
    running.close().await.unwrap();
}
