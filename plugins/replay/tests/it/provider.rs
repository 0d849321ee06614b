//! The provider `replay`: a tape as the model of any turn.

use std::{path::PathBuf, time::Duration};

use bub::{ChannelMessage, testing};
use bub_replay::{ReplayPlugin, Surroundings, settings::ReplaySettings};
use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Exchange, call, exchange, record, say};

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
    write_tape(directory, &exchanges).await
}

/// Records a conversation, and returns the path of its tape.
async fn write_tape(directory: &TempDir, exchanges: &[Exchange]) -> PathBuf {
    let recorded = record(directory.path(), exchanges).await;
    let entries = recorded.entries.iter();
    let lines: String = entries.map(bub::tape::codec::encode).collect();
    let path = directory.path().join("tape.jsonl");
    std::fs::write(&path, lines).unwrap();
    path
}

fn turn(message: &str, tape: &std::path::Path) -> testing::TurnTest {
    testing::turn(message)
        .plugin(ReplayPlugin::NAME, ReplayPlugin::new)
        .model(format!("replay:{}", tape.display()))
}

/// Design section 12: a tape is a test. This one runs in another workspace and another session than its tape, and as
/// the dates of messages have seconds, at another time. It is strict, so that each request must equal the recorded one.
#[tokio::test]
async fn a_tape_answers_step_by_step_in_another_workspace_and_session_and_its_tools_run() {
    let directory = TempDir::new().unwrap();
    let tape = recorded_tape(&directory).await;
    let yesterday = |line: &str| line.replace("---Date: 2026", "---Date: 1999");
    let text = std::fs::read_to_string(&tape).unwrap();
    std::fs::write(&tape, yesterday(&text)).unwrap();
    let turn = turn("write a note", &tape);
    let first = turn.run().await.unwrap();
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

/// A recorded path in the workspace means the same file in the workspace of the test.
#[tokio::test]
async fn paths_in_the_recorded_workspace_lead_to_the_current_one() {
    let directory = TempDir::new().unwrap();
    let recorded = directory.path().join("workspace");
    let note = recorded.join("note.md").display().to_string();
    let steps = vec![
        call("fs.write", json!({"path": note, "content": "milk"})),
        call("fs.read", json!({"path": note})),
        say(&format!("It is in {note}.")),
    ];
    let message = format!("write {note}");
    let tape = write_tape(&directory, &[exchange(&message, steps)]).await;
    std::fs::remove_file(&note).unwrap();
    let turn = turn(&message, &tape).run().await.unwrap();
    let current = turn.workspace().join("note.md");
    assert_eq!(std::fs::read_to_string(&current).unwrap(), "milk");
    turn.assert_reply(&format!("It is in {}.", current.display()));
    assert!(!std::path::Path::new(&note).exists());
}

/// The handle of a spilled result depends only on the result.
#[tokio::test]
async fn a_spilled_result_is_the_same_in_each_run() {
    let directory = TempDir::new().unwrap();
    let steps = vec![
        call("bash", json!({"cmd": "seq 1 60000"})),
        say("These are many numbers."),
    ];
    let tape = write_tape(&directory, &[exchange("count", steps)]).await;
    let recorded = std::fs::read_to_string(&tape).unwrap();
    assert!(recorded.contains("[tool output spilled: "), "{recorded}");
    let turn = turn("count", &tape).run().await.unwrap();
    turn.assert_reply("These are many numbers.");
}

#[tokio::test]
async fn each_session_has_its_own_position_on_the_tape() {
    let directory = TempDir::new().unwrap();
    let tape = recorded_tape(&directory).await;
    let first = turn("write a note", &tape).run().await.unwrap();
    let other = first
        .then("write a note")
        .message(|_| ChannelMessage::new("test:other", "test", "write a note").chat_id("local"))
        .run()
        .await
        .unwrap();
    other.assert_reply("I wrote the note to notes.md.");
    let thanks = first.then("thanks").run().await.unwrap();
    thanks.assert_reply("You are welcome.");
}

#[tokio::test]
async fn the_tape_records_the_origin_of_an_answer_and_its_usage_is_estimated_if_it_was_not_recorded()
 {
    let directory = TempDir::new().unwrap();
    let tape = recorded_tape(&directory).await;
    let data = |turn: &testing::TestedTurn, name: &str| {
        let mut entries = turn.entries().iter();
        let event = entries.find(|entry| entry.name() == Some(name));
        event.unwrap().data().unwrap().clone()
    };
    let turn_of = |message: &str| turn(message, &tape).setting("replay.divergence", "lenient");
    let recorded = turn_of("write a note").run().await.unwrap();
    assert_eq!(data(&recorded, "run")["usage"]["prompt_tokens"], 101);
    let origin = data(&recorded, "replay.answer");
    assert_eq!(origin["call"], 1);
    assert_eq!(origin["difference"], json!(null));
    assert_eq!(origin["is_usage_estimated"], false);
    let text = std::fs::read_to_string(&tape).unwrap();
    std::fs::write(&tape, text.replace("\"usage\"", "\"other\"")).unwrap();
    let estimated = turn_of("write another note").run().await.unwrap();
    // The definitions of the tools alone have more than a thousand tokens.
    let tokens = data(&estimated, "run")["usage"]["prompt_tokens"].as_u64();
    assert!(tokens > Some(1_000), "{tokens:?}");
    let origin = data(&estimated, "replay.answer");
    assert_eq!(origin["is_usage_estimated"], true);
    let difference = origin["difference"].as_str().unwrap();
    assert!(
        difference.contains("now `write another note`"),
        "{difference}"
    );
}

#[tokio::test]
async fn a_file_that_is_no_tape_is_rejected_with_its_path_and_line() {
    let directory = TempDir::new().unwrap();
    let tape = recorded_tape(&directory).await;
    let text = std::fs::read_to_string(&tape).unwrap();
    let second = text.lines().nth(1).unwrap();
    std::fs::write(&tape, text.replace(second, "a shopping list")).unwrap();
    let error = bub_replay::Recording::open(&tape).await.unwrap_err();
    let expected = format!("{}: line 2 is not an entry of a tape", tape.display());
    assert_eq!(error.message(), expected);
    std::fs::write(&tape, "\n").unwrap();
    let error = bub_replay::Recording::open(&tape).await.unwrap_err();
    assert_eq!(
        error.message(),
        format!("{}: the tape has no entries", tape.display())
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
    let model = bub_replay::RecordedModel::new(recording.into(), Surroundings::default())
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
    model.answer(&[], &[], settings(0)).await.unwrap();
    let started = tokio::time::Instant::now();
    let (stream, _) = model.answer(&[], &[], settings(10)).await.unwrap();
    let events: Vec<_> = stream.collect().await;
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
