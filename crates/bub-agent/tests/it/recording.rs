//! Every turn leaves entries on its session's tape.

use bub_kernel::{ChannelMessage, Error, Result, hooks};
use bub_tape::{Kind, Span, Tape, TapeName, Wait};

use crate::harness::World;

pub(crate) fn tape_of(world: &World, session_id: &str) -> Tape {
    let workspace = world.framework.workspace().to_string_lossy().into_owned();
    Tape::new(
        world.framework.tape_store().unwrap(),
        TapeName::for_session(&workspace, session_id),
    )
}

async fn kinds(tape: &Tape) -> Vec<String> {
    let entries = tape.entries(Span::ALL).await.unwrap();
    entries
        .iter()
        .map(|entry| {
            entry.name().map_or(entry.kind.to_string(), |name| {
                format!("{} {name}", entry.kind)
            })
        })
        .collect()
}

// S-1: also when a plugin answered in place of the builtin agent.
#[tokio::test]
async fn a_turn_leaves_the_message_the_output_and_the_run() {
    let world = World::echoing();
    let running = world.framework.running().await.unwrap();
    let result = world
        .turn(ChannelMessage::new("s", "lab", "hi"))
        .await
        .unwrap();
    let tape = tape_of(&world, "s");
    assert_eq!(
        kinds(&tape).await,
        [
            "anchor session/start",
            "event handoff",
            "message",
            "message",
            "event run"
        ]
    );
    let entries = tape.entries(Span::ALL).await.unwrap();
    assert_eq!(entries[2].payload["role"], "user");
    assert_eq!(entries[2].payload["content"], result.prompt.text());
    assert_eq!(entries[3].payload["content"], result.model_output);
    assert_eq!(entries[4].data().unwrap()["status"], "ok");
    running.close().await.unwrap();
}

// S-1, W-8: a failed turn leaves the user's message and the error.
#[tokio::test]
async fn a_failed_turn_leaves_the_message_and_the_error() {
    struct Failing;

    #[hooks(crate = bub_kernel)]
    impl Failing {
        fn run_model(&self) -> Result<String> {
            Err(Error::config("no key"))
        }
    }

    let world = World::with_plugin("failing", Failing);
    let running = world.framework.running().await.unwrap();
    world
        .turn(ChannelMessage::new("s", "lab", "hi"))
        .await
        .unwrap_err();
    let tape = tape_of(&world, "s");
    let entries = tape.entries(Span::ALL).await.unwrap();
    let error = entries
        .iter()
        .find(|entry| entry.kind == Kind::Error)
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

// W-71: a tape says whose it is.
#[tokio::test]
async fn the_tape_names_its_session() {
    let world = World::echoing();
    let running = world.framework.running().await.unwrap();
    world
        .turn(ChannelMessage::new("s", "lab", "hi"))
        .await
        .unwrap();
    let session = tape_of(&world, "s")
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

// L4: turns of one session take turns; each finds the tape as the one before left it.
#[tokio::test]
async fn turns_of_one_session_do_not_overlap() {
    let world = World::echoing();
    let running = world.framework.running().await.unwrap();
    let turns = (0..8).map(|n| world.turn(ChannelMessage::new("s", "lab", format!("message {n}"))));
    for turn in futures_util::future::join_all(turns).await {
        turn.unwrap();
    }
    let kinds = kinds(&tape_of(&world, "s")).await;
    assert_eq!(kinds.len(), 2 + 8 * 3);
    for turn in kinds[2..].chunks(3) {
        assert_eq!(turn, ["message", "message", "event run"]);
    }
    // And the lease is free again.
    drop(tape_of(&world, "s").lease(Wait::No).await.unwrap());
    running.close().await.unwrap();
}

// S-53: outside a running scope there is no store, and the turn still works.
#[tokio::test]
async fn without_a_scope_nothing_is_recorded() {
    let world = World::echoing();
    assert!(world.framework.tape_store().is_none());
    world
        .turn(ChannelMessage::new("s", "lab", "hi"))
        .await
        .unwrap();
    assert!(!world.dir.path().join("home").exists());
}

// L7: a secret that bub knows is not put on a tape, wherever it comes from.
#[tokio::test]
async fn secrets_are_not_recorded() {
    struct Leaky;

    #[hooks(crate = bub_kernel)]
    impl Leaky {
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

    let world = World::with_plugin("leaky", Leaky);
    let running = world.framework.running().await.unwrap();
    for session_id in ["fails", "answers"] {
        let channel = "lab of correct-horse-battery";
        let _ = world
            .turn(ChannelMessage::new(
                session_id,
                channel,
                "is correct-horse-battery right?",
            ))
            .await;
        let entries = tape_of(&world, session_id)
            .entries(Span::ALL)
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

struct Failing(&'static str);

#[hooks(crate = bub_kernel)]
impl Failing {
    fn load_state(&self) -> Result<Option<bub_kernel::StatePatch>> {
        if self.0 == "load_state" {
            Err(Error::config("cannot load"))
        } else {
            Ok(None)
        }
    }

    fn build_prompt(&self, state: &bub_kernel::State) -> Result<Option<bub_kernel::Prompt>> {
        // A clone of the state that outlives the turn must not keep the session locked.
        std::mem::forget(state.clone());
        if self.0 == "build_prompt" {
            Err(Error::config("cannot build"))
        } else {
            Ok(None)
        }
    }
}

// S-1, L1: a turn that fails before its model stage leaves the message and the error, and sets its session free.
#[tokio::test]
async fn a_turn_that_fails_early_is_recorded_and_lets_go_of_its_session() {
    for (hook, text) in [
        ("load_state", "cannot load"),
        ("build_prompt", "cannot build"),
    ] {
        let world = World::with_plugin("failing", Failing(hook));
        let running = world.framework.running().await.unwrap();
        world
            .turn(ChannelMessage::new("s", "lab", "hi"))
            .await
            .unwrap_err();
        let tape = tape_of(&world, "s");
        let entries = tape.entries(Span::ALL).await.unwrap();
        assert!(
            entries.iter().any(|entry| entry
                .payload
                .get("content")
                .is_some_and(|text| text == "hi")),
            "{hook}"
        );
        assert!(
            entries.iter().any(|entry| entry
                .payload
                .get("message")
                .is_some_and(|found| found == text)),
            "{hook}"
        );
        drop(tape.lease(Wait::No).await.unwrap());
        running.close().await.unwrap();
    }
}

// What there was of an answer is on the tape when the turn fails.
#[tokio::test]
async fn half_an_answer_is_recorded() {
    struct Breaking;

    #[hooks(crate = bub_kernel)]
    impl Breaking {
        fn run_model_stream(&self) -> bub_kernel::ModelStream {
            let events = [
                Ok(bub_kernel::StreamEvent::Text("half an answer".into())),
                Err(Error::unknown("cut")),
            ];
            bub_kernel::ModelStream::new(futures_util::stream::iter(events))
        }
    }

    let world = World::with_plugin("breaking", Breaking);
    let running = world.framework.running().await.unwrap();
    world
        .turn(ChannelMessage::new("s", "lab", "hi"))
        .await
        .unwrap_err();
    let entries = tape_of(&world, "s").entries(Span::ALL).await.unwrap();
    assert!(format!("{entries:?}").contains("half an answer"));
    running.close().await.unwrap();
}

// S-59: one directory is one workspace, however it is spelled.
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
