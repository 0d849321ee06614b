//! The tools `tape.info`, `tape.search`, `tape.read` and `tape.anchors`.

use std::sync::Arc;

use bub_agent::tools::{tape_anchors, tape_info, tape_read, tape_search};
use bub_kernel::{
    Envelope, Framework, Result, SessionId, State, Tool, ToolContext, Turn, TurnTape,
};
use bub_tape::{Entry, MemoryStore, Tape, TapeName};
use serde_json::{Value, json};

fn tape() -> Tape {
    Tape::new(
        Arc::new(MemoryStore::new()),
        TapeName::new("work__session").unwrap(),
    )
}

async fn call(tool: &dyn Tool, tape: &Tape, arguments: Value) -> Result<String> {
    let framework = Framework::builder().build();
    let session_id = SessionId::from("session");
    let tape = TurnTape::new(tape.clone(), &framework, &session_id, None);
    let turn = Turn::detached(&framework, Envelope::from_text("hi"), State::new());
    let context = ToolContext::new(turn.nested_run(session_id, State::new(), tape));
    let value = tool
        .call(arguments.as_object().cloned().unwrap(), context)
        .await?;
    Ok(tool.render(&value).unwrap())
}

async fn search(tape: &Tape, arguments: Value) -> (String, Vec<Value>) {
    let text = call(&tape_search(), tape, arguments).await.unwrap();
    let mut lines = text.lines();
    let first = lines.next().unwrap().to_owned();
    (
        first,
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
    )
}

async fn say(tape: &Tape, text: &str, date: &str) {
    let mut entry = Entry::message("user", text);
    entry.date = date.to_owned();
    tape.append(entry).await.unwrap();
}

// H-116
#[tokio::test]
async fn info_has_seven_lines() {
    let tape = tape();
    assert_eq!(
        call(&tape_info(), &tape, json!({})).await.unwrap(),
        "name: work__session\nentries: 0\nanchors: 0\nlast_anchor: None\nentries_since_last_anchor: 0\n\
         last_token_usage: None\nlast_token_cache_hit_rate: None"
    );
    tape.handoff("phase one", None).await.unwrap();
    let usage = json!({"usage": {
        "total_tokens": 120, "prompt_tokens": 80, "prompt_tokens_details": {"cached_tokens": 30}
    }});
    tape.append_event("run", usage).await.unwrap();
    assert_eq!(
        call(&tape_info(), &tape, json!({})).await.unwrap(),
        "name: work__session\nentries: 3\nanchors: 1\nlast_anchor: phase one\nentries_since_last_anchor: 2\n\
         last_token_usage: 120\nlast_token_cache_hit_rate: 37.50%"
    );
}

// H-116
#[tokio::test]
async fn the_last_twenty_anchors_are_listed() {
    let tape = tape();
    assert_eq!(
        call(&tape_anchors(), &tape, json!({})).await.unwrap(),
        "(no anchors)"
    );
    for number in 0..25 {
        tape.handoff(&format!("phase {number}"), None)
            .await
            .unwrap();
    }
    let expected: Vec<_> = (5..25).map(|number| format!("- phase {number}")).collect();
    assert_eq!(
        call(&tape_anchors(), &tape, json!({})).await.unwrap(),
        expected.join("\n")
    );
}

// H-116, W-20
#[tokio::test]
async fn searching_finds_any_script_quotes_and_typing_errors_the_latest_first() {
    let tape = tape();
    say(&tape, "你好，世界", "2026-01-01T10:00:00+00:00").await;
    say(
        &tape,
        "she said \"open sesame\" twice",
        "2026-01-02T10:00:00+00:00",
    )
    .await;
    say(&tape, "again: 你好", "2026-01-03T10:00:00+00:00").await;
    let text = call(&tape_search(), &tape, json!({"query": "你好"}))
        .await
        .unwrap();
    assert_eq!(
        text,
        "[tape.search]: 2 matches (0 filtered)\n\
         {\"date\":\"2026-01-03T10:00:00+00:00\",\"content\":\"again: 你好\",\"id\":3,\"from\":\"user\"}\n\
         {\"date\":\"2026-01-01T10:00:00+00:00\",\"content\":\"你好，世界\",\"id\":1,\"from\":\"user\"}"
    );
    let (_, quoted) = search(&tape, json!({"query": "\"OPEN sesame\""})).await;
    assert_eq!(quoted[0]["id"], 2);
    let (_, near) = search(&tape, json!({"query": "open sesmae"})).await;
    assert_eq!(near[0]["id"], 2);
    let (count, none) = search(&tape, json!({"query": "xylophone quartz"})).await;
    assert_eq!(
        (count.as_str(), none.len()),
        ("[tape.search]: 0 matches (0 filtered)", 0)
    );
}

// W-20
#[tokio::test]
async fn one_end_of_the_dates_is_enough_and_the_current_turn_is_no_exception() {
    let tape = tape();
    for day in 1..=4 {
        say(
            &tape,
            &format!("keys {day}"),
            &format!("2026-01-0{day}T10:00:00+00:00"),
        )
        .await;
    }
    let cases = [
        (json!({"query": "keys", "start": "2026-01-03"}), vec![4, 3]),
        (json!({"query": "keys", "end": "2026-01-02"}), vec![2, 1]),
        (
            json!({"query": "keys", "start": "2026-01-02", "end": "2026-01-03"}),
            vec![3, 2],
        ),
        (
            json!({"query": "keys", "start": "", "end": null, "limit": "1"}),
            vec![4],
        ),
        (json!({"query": "doors", "start": "2026-01-01"}), vec![]),
    ];
    for (arguments, expected) in cases {
        let (_, found) = search(&tape, arguments.clone()).await;
        let ids: Vec<_> = found
            .iter()
            .map(|line| line["id"].as_i64().unwrap())
            .collect();
        assert_eq!(ids, expected, "{arguments}");
    }
    let wrong = call(
        &tape_search(),
        &tape,
        json!({"query": "keys", "start": "soon"}),
    )
    .await;
    assert!(wrong.unwrap_err().to_string().contains("soon"));
}

// H-116
#[tokio::test]
async fn kinds_are_chosen_and_earlier_searches_are_filtered() {
    let tape = tape();
    say(&tape, "the keys", "2026-01-01T10:00:00+00:00").await;
    tape.append_event("note", json!({"about": "the keys"}))
        .await
        .unwrap();
    let earlier = call(&tape_search(), &tape, json!({"query": "keys"}))
        .await
        .unwrap();
    say(&tape, &earlier, "2026-01-01T11:00:00+00:00").await;
    let (count, found) = search(&tape, json!({"query": "keys"})).await;
    assert_eq!(
        (count.as_str(), found.len()),
        ("[tape.search]: 1 matches (1 filtered)", 1)
    );
    let (_, events) = search(&tape, json!({"query": "keys", "kinds": "event"})).await;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["id"], 2);
    // Only a part of a long entry is shown.
    say(
        &tape,
        &format!("{} needle {}", "x ".repeat(5000), "y ".repeat(5000)),
        "2026-01-02",
    )
    .await;
    let (_, found) = search(&tape, json!({"query": "needle"})).await;
    let content = found[0]["content"].as_str().unwrap();
    assert!(
        content.contains("needle") && content.len() < 300,
        "{content}"
    );
}

/// A match is opened with its surroundings, and a search does not find what was read.
#[tokio::test]
async fn reading_shows_the_entries_around_an_id() {
    let tape = tape();
    tape.handoff("phase one", None).await.unwrap();
    for number in 0..9 {
        say(
            &tape,
            &format!("message {number}"),
            "2026-01-01T10:00:00+00:00",
        )
        .await;
        tape.append_event("loop.step", json!({"step": number}))
            .await
            .unwrap();
    }
    let (_, found) = search(&tape, json!({"query": "\"message 4\""})).await;
    assert_eq!(found[0]["phase"], "phase one");
    let id = found[0]["id"].as_i64().unwrap();
    let shown = call(&tape_read(), &tape, json!({"id": id, "around": 1}))
        .await
        .unwrap();
    let lines: Vec<Value> = shown
        .lines()
        .skip(1)
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let texts: Vec<_> = lines
        .iter()
        .map(|line| line["content"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["message 3", "message 4", "message 5"]);
    assert_eq!(lines[1]["from"], "user");
    let missing = call(&tape_read(), &tape, json!({"id": 999}))
        .await
        .unwrap_err();
    assert_eq!(
        missing.message(),
        "unknown entry `999`; pass an id from `tape.search`"
    );
    say(&tape, &shown, "2026-01-02T10:00:00+00:00").await;
    let (count, _) = search(&tape, json!({"query": "\"message 4\""})).await;
    assert_eq!(count, "[tape.search]: 1 matches (1 filtered)");
}

// W-21
#[test]
fn every_tool_is_described() {
    for tool in [&tape_info() as &dyn Tool, &tape_search(), &tape_anchors()] {
        let spec = tool.spec();
        assert!(
            !spec.description.is_empty() && spec.read_only,
            "{}",
            spec.name
        );
    }
    assert_eq!(
        tape_search().spec().parameters["required"],
        json!(["query"])
    );
}
