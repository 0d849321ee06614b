//! The provider `replay`: a tape as the model of any turn.

use std::{path::PathBuf, time::Duration};

use bub::testing;
use bub_replay::{ReplayPlugin, settings::ReplaySettings};
use serde_json::json;
use tempfile::TempDir;

use crate::harness::{call, exchange, record, say};

/// Records a tape in which the model writes a file, and returns its path.
async fn recorded_tape(directory: &TempDir) -> PathBuf {
    let steps = vec![
        call(
            "fs.write",
            json!({"path": "notes.md", "content": "Buy milk"}),
        ),
        say("I wrote the note to notes.md."),
    ];
    let exchanges = [
        exchange("write a note", steps),
        exchange("thanks", vec![say("You are welcome.")]),
    ];
    let recorded = record(directory.path(), &exchanges).await;
    let lines: String = recorded
        .entries
        .iter()
        .map(bub::tape::codec::encode)
        .collect();
    let path = directory.path().join("tape.jsonl");
    std::fs::write(&path, lines).unwrap();
    path
}

fn turn(message: &str, tape: &std::path::Path) -> testing::TurnTest {
    testing::turn(message)
        .plugin(ReplayPlugin::NAME, ReplayPlugin::new)
        .model(format!("replay:{}", tape.display()))
}

#[tokio::test]
async fn a_tape_answers_step_by_step_and_its_tools_run() {
    let directory = TempDir::new().unwrap();
    let tape = recorded_tape(&directory).await;
    let test = turn("write a note", &tape).setting("replay.divergence", "lenient");
    let first = test.run().await.unwrap();
    first.assert_reply("I wrote the note to notes.md.");
    let note = std::fs::read_to_string(first.workspace().join("notes.md")).unwrap();
    assert_eq!(note, "Buy milk");
    let second = first.then("thanks").run().await.unwrap();
    second.assert_reply("You are welcome.");
    let error = second.then("more").run().await.err().unwrap().to_string();
    assert!(
        error.contains("the tape has no further answer: all 3 recorded model calls are used"),
        "{error}"
    );
}

#[tokio::test]
async fn another_request_fails_with_the_first_difference_if_strict() {
    let directory = TempDir::new().unwrap();
    let tape = recorded_tape(&directory).await;
    let error = turn("delete a note", &tape)
        .run()
        .await
        .err()
        .unwrap()
        .to_string();
    let expected = "the request differs from model call 1 of the tape: ";
    assert!(error.contains(expected), "{error}");
    assert!(
        error.contains("set `replay.divergence` to `lenient`"),
        "{error}"
    );
}

#[tokio::test]
async fn an_unknown_tape_is_named() {
    let path = PathBuf::from("no-such-tape.jsonl");
    let error = turn("hi", &path).run().await.err().unwrap().to_string();
    assert!(
        error.contains("unknown tape `no-such-tape.jsonl`"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_text_is_streamed_in_pieces_at_the_configured_pace() {
    use bub::{StreamEvent, futures::StreamExt as _};
    let directory = TempDir::new().unwrap();
    let tape = recorded_tape(&directory).await;
    let recording = bub_replay::Recording::open(&tape).await.unwrap();
    let model = bub_replay::RecordedModel::new(recording.into())
        .await
        .unwrap();
    let settings = |pace| {
        let divergence = bub_replay::settings::Divergence::Lenient;
        ReplaySettings {
            divergence,
            pace,
            session: false,
        }
    };
    model.answer(&[], settings(0)).await;
    let started = tokio::time::Instant::now();
    let events: Vec<_> = model.answer(&[], settings(10)).await.collect().await;
    let texts: Vec<String> = events
        .into_iter()
        .filter_map(|event| match event.unwrap() {
            StreamEvent::Text(text) => Some(text),
            _ => None,
        })
        .collect();
    assert_eq!(texts.concat(), "I wrote the note to notes.md.");
    assert!(texts.len() > 2, "{texts:?}");
    // 29 characters at 10 per second.
    let elapsed = started.elapsed();
    assert!(
        elapsed >= Duration::from_millis(2800) && elapsed < Duration::from_secs(4),
        "{elapsed:?}"
    );
}
