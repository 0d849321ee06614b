//! Replays of tapes: the same requests, the same entries, and what differs.

use bub_replay::{ReplayOptions, ToolSource};
use bub_testkit::needs_fixtures;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{
    Exchange, Step, call, comparable, exchange, record, record_with_limit, replay, say,
};

/// Returns one of the building blocks of the recorded conversations.
fn block(kind: usize, number: usize) -> Exchange {
    let file = format!("file{number}.txt");
    let message = format!("message {number}");
    match kind {
        0 => exchange(&message, vec![say("An answer without tools.")]),
        1 => exchange(
            &message,
            vec![
                call(
                    "fs.write",
                    json!({"path": file, "content": format!("text {number}")}),
                ),
                call("fs.read", json!({"path": file})),
                say("The file is written."),
            ],
        ),
        2 => exchange(
            &message,
            vec![
                Step::Call(vec![
                    ("fs.glob", json!({"pattern": "*.txt"})),
                    ("fs.grep", json!({"pattern": "text"})),
                    ("fs.list", json!({})),
                ]),
                say("Three calls at once."),
            ],
        ),
        3 => exchange(
            &message,
            vec![
                call(
                    "tape.handoff",
                    json!({"name": format!("phase{number}"), "summary": "what matters"}),
                ),
                say("Handed off."),
            ],
        ),
        4 => exchange(
            &message,
            vec![
                call("nudge", json!({"text": "also this, please"})),
                say("Both are done."),
            ],
        ),
        5 => exchange(
            &message,
            vec![
                call("fs.read", json!({"path": "missing.txt"})),
                call("no_such_tool", json!({})),
                call("fs.read", json!({"path": 7})),
                say("Nothing worked."),
            ],
        ),
        6 => exchange(
            &message,
            vec![Step::Fail, Step::Fail, Step::Fail, Step::Fail],
        ),
        7 => Exchange {
            has_image: true,
            ..exchange(&message, vec![say("A picture of one pixel.")])
        },
        8 => exchange(
            &message,
            vec![
                call("subagent", json!({"prompt": "count to three"})),
                say("one two three"),
                say("The subagent counted."),
            ],
        ),
        _ => exchange(
            &message,
            vec![
                call("bash", json!({"cmd": format!("echo {number}; date +%N")})),
                call(
                    "todo",
                    json!({"items": [{"text": "test", "status": "pending"}]}),
                ),
                say("A command and a list."),
            ],
        ),
    }
}

/// Returns conversation `seed`: one to four of the building blocks, starting with another one each time.
fn conversation(seed: usize) -> Vec<Exchange> {
    let turns = 1 + seed % 4;
    let kind = |turn: usize| (seed + turn * (1 + seed / 10)) % 10;
    (0..turns)
        .map(|turn| block(kind(turn), seed * 10 + turn))
        .collect()
}

/// Removes the ids of entries in handoffs. They differ, because the copy of the tape has other events.
fn without_entry_ids(text: &str) -> String {
    let mut parts = Vec::new();
    for part in text.split("- #") {
        parts.push(part.trim_start_matches(|letter: char| letter.is_ascii_digit()));
    }
    let text = parts.join("- #");
    let mut parts = text.split("[Entries ");
    let mut clean = parts.next().unwrap().to_owned();
    for part in parts {
        clean.push_str(part.split_once(" are not shown").unwrap().1);
    }
    clean
}

/// Removes the date of prompts, which is the only time in a request.
fn without_dates(requests: &[Vec<Value>]) -> Vec<String> {
    let text = without_entry_ids(&serde_json::to_string(requests).unwrap());
    let mut parts = text.split("---Date: ");
    let mut clean = parts.next().unwrap().to_owned();
    for part in parts {
        clean.push_str("---Date: ");
        clean.push_str(part.split_once("---\\n").map_or(part, |(_, rest)| rest));
    }
    let requests: Vec<Value> = serde_json::from_str(&clean).unwrap();
    requests.iter().map(Value::to_string).collect()
}

/// Returns all entries without ids and times. Parallel calls end in any order, so their events are sorted.
fn comparable_entries(entries: &[bub::Entry]) -> Vec<Value> {
    let mut entries: Vec<Value> = entries.iter().map(comparable).collect();
    let is_done = |entry: &Value| entry["payload"]["name"] == "tool.done";
    for group in entries.chunk_by_mut(|left, right| is_done(left) && is_done(right)) {
        group.sort_by_key(Value::to_string);
    }
    entries
}

/// Design section 12: a tape is a test.
#[tokio::test]
async fn fifty_tapes_replay_with_equal_requests_and_entries() {
    for seed in 0..50 {
        let directory = TempDir::new().unwrap();
        let exchanges = conversation(seed);
        let recorded = record(directory.path(), &exchanges).await;
        let replayed = replay(
            directory.path(),
            &recorded.recording,
            ReplayOptions::default(),
        )
        .await;
        assert_eq!(replayed.session.differences(), [], "tape {seed}");
        // The requests of a subagent are not on the tape. Its result is.
        let own: Vec<Vec<Value>> = recorded
            .requests
            .iter()
            .filter(|request| {
                !request
                    .last()
                    .unwrap()
                    .to_string()
                    .contains("count to three")
            })
            .cloned()
            .collect();
        let requests = replayed.session.requests();
        assert_eq!(without_dates(&requests).len(), own.len(), "tape {seed}");
        for (step, (recorded, replayed)) in without_dates(&own)
            .iter()
            .zip(without_dates(&requests))
            .enumerate()
        {
            assert_eq!(*recorded, replayed, "tape {seed}, request {step}");
        }
        let original = comparable_entries(recorded.recording.entries());
        let copies = comparable_entries(replayed.recording.entries());
        for (index, (original, copy)) in original.iter().zip(&copies).enumerate() {
            assert_eq!(original, copy, "tape {seed}, entry {index}");
        }
        assert_eq!(original.len(), copies.len(), "tape {seed}");
    }
}

#[tokio::test]
async fn a_changed_system_prompt_is_reported_at_the_first_step() {
    let directory = TempDir::new().unwrap();
    let exchanges = [block(1, 1), block(0, 2)];
    let recorded = record(directory.path(), &exchanges).await;
    let options = ReplayOptions {
        system: Some("You are another agent.".to_owned()),
        ..ReplayOptions::default()
    };
    let replayed = replay(directory.path(), &recorded.recording, options).await;
    let differences = replayed.session.differences();
    let (turn, step, text) = &differences[0];
    assert_eq!((*turn, *step), (0, 0));
    assert!(
        text.starts_with("the system prompt differs: recorded `"),
        "{text}"
    );
}

#[tokio::test]
async fn a_changed_tool_result_is_reported_at_the_step_that_sees_it() {
    let directory = TempDir::new().unwrap();
    let exchanges = [block(0, 1), block(1, 2)];
    let recorded = record(directory.path(), &exchanges).await;
    let mut entries = recorded.entries.clone();
    let results = entries
        .iter_mut()
        .filter(|entry| entry.kind.as_str() == "tool_result");
    let read = results.last().unwrap();
    assert!(
        read.payload["results"][0]
            .as_str()
            .unwrap()
            .contains("text 2")
    );
    read.payload["results"] = json!(["something else"]);
    let store = bub::tape::MemoryStore::new();
    let changed = bub_replay::Recording::new(entries, &*bub::TapeStore::blobs(&store)).await;
    // The tools run, so the result is the real one.
    let live = ReplayOptions {
        tools: ToolSource::Live,
        ..ReplayOptions::default()
    };
    let replayed = replay(directory.path(), &std::sync::Arc::new(changed), live).await;
    let differences = replayed.session.differences();
    assert_eq!(differences.len(), 1, "{differences:?}");
    let (turn, step, text) = &differences[0];
    assert_eq!((*turn, *step), (1, 2), "{text}");
    assert!(
        text.contains("(tool) differs: recorded `something else`, now `"),
        "{text}"
    );
}

/// The current setting of `max_steps` is another one.
#[tokio::test]
async fn a_turn_that_reached_the_maximum_number_of_steps_ends_there_again() {
    let directory = TempDir::new().unwrap();
    let mut long = block(1, 1);
    long.steps.pop();
    let exchanges = [long, block(0, 2), block(2, 3)];
    let recorded = record_with_limit(directory.path(), &exchanges, Some(2)).await;
    let errors = recorded
        .entries
        .iter()
        .filter(|entry| entry.kind.as_str() == "error");
    assert_eq!(errors.count(), 1);
    let options = ReplayOptions::default();
    let replayed = replay(directory.path(), &recorded.recording, options).await;
    assert_eq!(replayed.session.differences(), []);
    assert_eq!(replayed.session.requests().len(), recorded.requests.len());
    assert_eq!(
        comparable_entries(recorded.recording.entries()),
        comparable_entries(replayed.recording.entries())
    );
}

/// L1: after a crash of the gateway, another process continues the turn with the same id. In the replay, it is one turn.
#[tokio::test]
async fn a_turn_that_a_later_process_continued_is_one_turn() {
    let directory = TempDir::new().unwrap();
    let exchanges = [block(1, 1), block(0, 2)];
    let recorded = record(directory.path(), &exchanges).await;
    let entries = recorded.entries.iter();
    let position = |name: &str| entries.clone().position(|entry| entry.name() == Some(name));
    let (start, step) = (
        position("loop.start").unwrap(),
        position("loop.step.start").unwrap(),
    );
    let interrupted = json!({"step": 1, "status": "error", "error": "interrupted: the process ended in this step"});
    let continued = [
        bub::Entry::event("loop.step", Some(interrupted)),
        bub::Entry::event("turn.redelivered", Some(json!({"attempt": 2}))),
        recorded.entries[start].clone(),
        recorded.entries[step].clone(),
    ];
    let run = recorded.entries[start].meta["run_id"].clone();
    let continued = continued.map(|entry| entry.with_meta("run_id", run.clone()));
    let mut entries = recorded.entries.clone();
    // After the system prompt, which follows the start of the step.
    let system = entries
        .iter()
        .rposition(|entry| entry.kind.as_str() == "system");
    let end = system.unwrap() + 1;
    entries.splice(end..end, continued);
    let store = bub::tape::MemoryStore::new();
    let blobs = bub::TapeStore::blobs(&store);
    let recording = std::sync::Arc::new(bub_replay::Recording::new(entries, &*blobs).await);
    assert_eq!(recording.turn_count(), 2);
    let replayed = replay(directory.path(), &recording, ReplayOptions::default()).await;
    assert_eq!(replayed.session.differences(), []);
    assert_eq!(replayed.session.requests().len(), recorded.requests.len());
    assert_eq!(
        comparable_entries(&recorded.entries),
        comparable_entries(replayed.recording.entries())
    );
}

/// Makes a recording of changed entries.
async fn changed(entries: Vec<bub::Entry>) -> std::sync::Arc<bub_replay::Recording> {
    let store = bub::tape::MemoryStore::new();
    let blobs = bub::TapeStore::blobs(&store);
    std::sync::Arc::new(bub_replay::Recording::new(entries, &*blobs).await)
}

/// The process died before it wrote the start of the next step, with and without a later turn.
#[tokio::test]
async fn a_turn_that_was_killed_between_steps_ends_there_again() {
    let directory = TempDir::new().unwrap();
    let recorded = record(directory.path(), &[block(1, 1), block(0, 2)]).await;
    let indexes = (0..).zip(&recorded.entries);
    let mut starts = indexes.filter(|(_, entry)| entry.name() == Some("loop.step.start"));
    let second: usize = starts.nth(1).unwrap().0;
    let run = recorded.entries[second].meta["run_id"].clone();
    let is_later = |entry: &bub::Entry| entry.meta.get("run_id") != Some(&run);
    for is_continued in [false, true] {
        let mut entries = recorded.entries[..second].to_vec();
        if is_continued {
            let rest = recorded.entries[second..].iter();
            entries.extend(rest.filter(|entry| is_later(entry)).cloned());
        }
        let recording = changed(entries.clone()).await;
        let replayed = replay(directory.path(), &recording, ReplayOptions::default()).await;
        assert_eq!(replayed.session.differences(), []);
        assert_eq!(
            comparable_entries(&entries),
            comparable_entries(replayed.recording.entries())
        );
    }
}

/// A handoff that did not run when the tape was recorded must not remove the context of later requests.
#[tokio::test]
async fn a_tool_of_the_session_runs_only_if_it_ran_before() {
    let directory = TempDir::new().unwrap();
    let recorded = record(directory.path(), &[block(3, 1), block(0, 2)]).await;
    let denied = json!({"kind": "tool", "message": "Tool 'tape.handoff' denied by the user"});
    for (result, runs) in [
        (denied, false),
        (
            json!("[not run: this exact call was made 5 times in a row]"),
            false,
        ),
        (json!("[not run]"), false),
        (json!("anchor added: phase1"), true),
    ] {
        let mut entries = recorded.entries.clone();
        let is_handoff = |entry: &bub::Entry| {
            entry.name() == Some("phase1")
                || entry.data().is_some_and(|data| data["name"] == "phase1")
        };
        assert!(entries.iter().any(is_handoff));
        if !runs {
            entries.retain(|entry| !is_handoff(entry));
        }
        let mut results = entries
            .iter_mut()
            .filter(|entry| entry.kind.as_str() == "tool_result");
        results.next().unwrap().payload["results"] = json!([result]);
        let recording = changed(entries).await;
        let replayed = replay(directory.path(), &recording, ReplayOptions::default()).await;
        assert_eq!(replayed.session.differences(), [], "{result}");
        let has_run = replayed.recording.entries().iter().any(is_handoff);
        assert_eq!(has_run, runs, "{result}");
    }
}

#[tokio::test]
async fn no_tool_runs_unless_the_replay_is_live() {
    let directory = TempDir::new().unwrap();
    let recorded = record(directory.path(), &[block(1, 3)]).await;
    let file = directory.path().join("workspace/file3.txt");
    for (tools, exists) in [
        (ToolSource::Recorded, false),
        (ToolSource::Dry, false),
        (ToolSource::Live, true),
    ] {
        let _ = std::fs::remove_file(&file);
        let options = ReplayOptions {
            tools,
            ..ReplayOptions::default()
        };
        replay(directory.path(), &recorded.recording, options).await;
        assert_eq!(file.exists(), exists, "{tools:?}");
    }
}

/// The tapes of the Python version, recorded with its own runtime.
#[needs_fixtures]
#[tokio::test]
async fn tapes_of_the_python_version_give_the_same_messages_calls_and_results() {
    let fixtures = bub_testkit::fixtures("tapes");
    let mut replayed_turns = 0;
    for file in std::fs::read_dir(fixtures).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.extension().is_none_or(|end| end != "jsonl") || name.contains("__sidecar__") {
            continue;
        }
        let recording = std::sync::Arc::new(bub_replay::Recording::open(&path).await.unwrap());
        let directory = TempDir::new().unwrap();
        let replayed = replay(directory.path(), &recording, ReplayOptions::default()).await;
        let conversation = |recording: &bub_replay::Recording| -> Vec<Value> {
            let kinds = ["message", "tool_call", "tool_result"];
            let entries = recording.entries().iter();
            let entries = entries.filter(|entry| kinds.contains(&entry.kind.as_str()));
            entries
                .map(|entry| Value::Object(entry.payload.clone()))
                .collect()
        };
        assert_eq!(
            conversation(&recording),
            conversation(&replayed.recording),
            "{name}"
        );
        // A turn that failed has no prompt on the tape, and must not take that of the next turn.
        let turns = recording.turn_count();
        assert_eq!(turns, replayed.recording.turn_count(), "{name}");
        replayed_turns += turns;
    }
    assert!(replayed_turns > 5, "{replayed_turns}");
}

/// Returns a recorded handoff, changed to a reset with this result, which had no effect.
fn as_reset(mut entries: Vec<bub::Entry>, result: &Value) -> Vec<bub::Entry> {
    entries.retain(|entry| {
        entry.name() != Some("phase1") && entry.data().is_none_or(|data| data["name"] != "phase1")
    });
    let is_call = |entry: &&bub::Entry| entry.kind.as_str() == "tool_call";
    let run = entries.iter().find(is_call).unwrap().meta["run_id"].clone();
    let mut results = 0;
    for entry in entries
        .iter_mut()
        .filter(|entry| entry.meta.get("run_id") == Some(&run))
    {
        if entry.kind.as_str() == "tool_call" {
            let function = &mut entry.payload["calls"][0]["function"];
            (function["name"], function["arguments"]) = (json!("tape_reset"), json!("{}"));
        }
        if entry.kind.as_str() == "tool_result" {
            entry.payload["results"] = json!([result]);
            results += 1;
        }
    }
    assert_eq!(results, 1);
    entries
}

/// A reset that is on the tape had no effect, because a reset removes its call from the tape.
#[tokio::test]
async fn a_denied_reset_has_no_effect_in_a_replay() {
    let directory = TempDir::new().unwrap();
    let recorded = record(directory.path(), &[block(0, 3), block(3, 1), block(0, 2)]).await;
    let denied = json!({"kind": "tool", "message": "Tool 'tape.reset' denied by the user"});
    let entries = as_reset(recorded.entries.clone(), &denied);
    let recording = changed(entries.clone()).await;
    let replayed = replay(directory.path(), &recording, ReplayOptions::default()).await;
    assert_eq!(replayed.session.differences(), []);
    assert_eq!(replayed.recording.turn_count(), 3);
    assert_eq!(
        comparable_entries(&entries),
        comparable_entries(replayed.recording.entries())
    );
}

/// Returns the entries of a tape whose process was killed when the tape had `length` entries. If it is continued, the next
/// turn completes the record, and all later turns follow.
fn killed(entries: &[bub::Entry], length: usize, is_continued: bool) -> Vec<bub::Entry> {
    let mut killed = entries[..length].to_vec();
    if !is_continued {
        return killed;
    }
    let mut runs = killed
        .iter()
        .rev()
        .filter_map(|entry| entry.meta.get("run_id"));
    let run = runs.next().unwrap().clone();
    let of_run = |entry: &&bub::Entry| entry.meta.get("run_id") == Some(&run);
    let of_step = killed.iter().rev().filter(of_run);
    let name = |entry: &bub::Entry| entry.name().unwrap_or_default().to_owned();
    let last = of_step.map(name).find(|name| name.starts_with("loop.step"));
    if last.as_deref() == Some("loop.step.start") {
        let data = json!({"step": 1, "status": "error", "error": "interrupted: the process ended in this step"});
        let event = bub::Entry::event("loop.step", Some(data));
        killed.push(event.with_meta("run_id", run.clone()));
    }
    let rest = entries[length..].iter();
    let is_later = |entry: &&bub::Entry| entry.meta.contains_key("run_id") && !of_run(entry);
    killed.extend(rest.filter(is_later).cloned());
    killed
}

/// L1: the process died in a handoff, before or after its anchor, or before a reset that the model had asked for.
#[tokio::test]
async fn a_turn_that_was_killed_in_a_handoff_or_before_a_reset_ends_there_again() {
    let directory = TempDir::new().unwrap();
    let recorded = record(directory.path(), &[block(0, 3), block(3, 1), block(1, 2)]).await;
    let will_reset = json!("the tape will be reset at the end of this step");
    let reset = as_reset(recorded.entries.clone(), &will_reset);
    for (tape, entries) in [("handoff", &recorded.entries), ("reset", &reset)] {
        let of_kind = |kind: &str| entries.iter().position(|entry| entry.kind.as_str() == kind);
        let result = of_kind("tool_result").unwrap();
        let run = &entries[result].meta["run_id"];
        let steps = entries.iter().enumerate().filter(|(_, entry)| {
            entry.meta.get("run_id") == Some(run) && entry.name() == Some("loop.step")
        });
        let end = steps.map(|(index, _)| index).next().unwrap();
        // After the results, after the anchor with its event, and after the step.
        let lengths = [result + 1, end, end + 1];
        let lengths = match tape {
            "handoff" => &lengths[..],
            _ => &lengths[..1],
        };
        for length in lengths {
            for is_continued in [false, true] {
                let case = format!("{tape}, {length} entries, continued: {is_continued}");
                let entries = killed(entries, *length, is_continued);
                let recording = changed(entries.clone()).await;
                let replayed = replay(directory.path(), &recording, ReplayOptions::default()).await;
                assert_eq!(replayed.session.differences(), [], "{case}");
                let names = |entries: &[bub::Entry]| -> Vec<String> {
                    let name = |entry: &bub::Entry| {
                        format!(
                            "{} {}",
                            entry.kind.as_str(),
                            entry.name().unwrap_or_default()
                        )
                    };
                    entries.iter().map(name).collect()
                };
                let found = names(replayed.recording.entries());
                assert_eq!(names(&entries), found, "{case}");
                assert_eq!(
                    comparable_entries(&entries),
                    comparable_entries(replayed.recording.entries()),
                    "{case}"
                );
            }
        }
    }
}

/// A reset removes the start of its turn from the tape. So the turn is copied.
#[tokio::test]
async fn a_turn_in_which_the_tape_was_reset_is_copied() {
    let directory = TempDir::new().unwrap();
    let reset = exchange(
        "clear",
        vec![call("tape.reset", json!({})), say("Cleared.")],
    );
    let recorded = record(directory.path(), &[block(1, 1), reset, block(1, 2)]).await;
    assert_eq!(recorded.recording.turn_count(), 2);
    let options = ReplayOptions::default();
    let replayed = replay(directory.path(), &recorded.recording, options).await;
    assert_eq!(replayed.session.differences(), []);
    assert_eq!(replayed.session.requests().len(), 3);
    assert_eq!(
        comparable_entries(recorded.recording.entries()),
        comparable_entries(replayed.recording.entries())
    );
}
