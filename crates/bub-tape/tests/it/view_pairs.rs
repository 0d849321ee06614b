//! Tool calls and results stay paired on any tape.

use crate::view_support::{call, rejection_reason, tape_of};
use bub_tape::{Entry, INTERRUPTED_RESULT, ViewOptions, tool_done_event};
use serde_json::{Map, Value, json};

fn user(text: &str) -> Entry {
    Entry::message("user", text)
}

fn tool(id: &str, content: &str) -> Value {
    json!({"role": "tool", "content": content, "tool_call_id": id, "name": "bash"})
}

fn calls(ids: &[&str]) -> Value {
    let calls: Vec<Value> = ids.iter().map(|id| call(id, "bash")).collect();
    json!({"role": "assistant", "content": "", "tool_calls": calls})
}

fn called(ids: &[&str]) -> Entry {
    Entry::tool_call(ids.iter().map(|id| call(id, "bash")).collect())
}

type Case = (&'static str, Vec<Entry>, Value);

async fn check_all(cases: Vec<Case>) {
    for (what, entries, expected) in cases {
        let view = tape_of(entries)
            .await
            .view(&ViewOptions::new())
            .await
            .unwrap();
        assert_eq!(rejection_reason(&view.messages), None, "{what}");
        assert_eq!(
            serde_json::to_value(&view.messages).unwrap(),
            expected,
            "{what}"
        );
    }
}

fn result(texts: &[&str]) -> Entry {
    Entry::tool_result(texts.iter().map(|text| Value::from(*text)).collect())
}

/// L3, W-2: every call is followed by exactly one result, even if results are missing or surplus.
#[tokio::test]
async fn calls_and_results_stay_paired() {
    let in_run = |entry: Entry, run: &str| entry.with_meta("run_id", run);
    let cases: Vec<Case> = vec![
        (
            "a call at the end of the tape",
            vec![called(&["a"])],
            json!([calls(&["a"]), tool("a", INTERRUPTED_RESULT)]),
        ),
        (
            "a call followed by the next turn",
            vec![called(&["a"]), user("still there?")],
            json!([calls(&["a"]), tool("a", INTERRUPTED_RESULT), {"role": "user", "content": "still there?"}]),
        ),
        (
            "two calls, the first interrupted",
            vec![called(&["a"]), called(&["b"]), result(&["two"])],
            json!([
                calls(&["a"]),
                tool("a", INTERRUPTED_RESULT),
                calls(&["b"]),
                tool("b", "two")
            ]),
        ),
        (
            "a result without a call",
            vec![result(&["lost"]), user("hi")],
            json!([{"role": "user", "content": "hi"}]),
        ),
        (
            "a second result",
            vec![called(&["a"]), result(&["one"]), result(&["again"])],
            json!([calls(&["a"]), tool("a", "one")]),
        ),
        (
            "fewer results than calls",
            vec![called(&["a", "b"]), result(&["one"])],
            json!([
                calls(&["a", "b"]),
                tool("a", "one"),
                tool("b", INTERRUPTED_RESULT)
            ]),
        ),
        (
            "more results than calls",
            vec![called(&["a"]), result(&["one", "two", "three"])],
            json!([calls(&["a"]), tool("a", "one")]),
        ),
        (
            "a crash after some of the calls were done",
            vec![called(&["a", "b"]), tool_done_event("b", "second")],
            json!([
                calls(&["a", "b"]),
                tool("a", INTERRUPTED_RESULT),
                tool("b", "second")
            ]),
        ),
        (
            "what is done is no news once the results are there",
            vec![
                called(&["a", "b"]),
                tool_done_event("a", "early"),
                result(&["one", "two"]),
            ],
            json!([calls(&["a", "b"]), tool("a", "one"), tool("b", "two")]),
        ),
        (
            "a message between call and result",
            vec![called(&["a"]), user("stop!"), result(&["one"])],
            json!([calls(&["a"]), tool("a", "one"), {"role": "user", "content": "stop!"}]),
        ),
        (
            "two concurrent turns, distinguished by their runs",
            vec![
                in_run(called(&["a"]), "r1"),
                in_run(called(&["b"]), "r2"),
                in_run(result(&["one"]), "r1"),
                in_run(result(&["two"]), "r2"),
            ],
            json!([
                calls(&["a"]),
                tool("a", "one"),
                calls(&["b"]),
                tool("b", "two")
            ]),
        ),
        (
            "a result that names its calls",
            vec![
                called(&["a"]),
                result(&["two"]).with_meta("call_ids", json!(["b"])),
            ],
            json!([calls(&["a"]), tool("a", INTERRUPTED_RESULT)]),
        ),
    ];
    check_all(cases).await;
}

/// L3, S-62: invalid calls are not shown, and calls without an id get one.
#[tokio::test]
async fn malformed_calls_do_no_harm() {
    let no_call = json!({"id": "x", "type": "function"});
    let cases: Vec<Case> = vec![
        (
            "no valid call",
            vec![
                Entry::tool_call(vec![json!("x"), no_call.clone()]),
                result(&["?"]),
            ],
            json!([]),
        ),
        (
            "an invalid call keeps its place",
            vec![
                Entry::tool_call(vec![no_call, call("b", "bash")]),
                result(&["first", "second"]),
            ],
            json!([calls(&["b"]), tool("b", "second")]),
        ),
        (
            "calls without an id",
            vec![called(&["", ""]), result(&["one", "two"])],
            json!([
                calls(&["call_0", "call_1"]),
                tool("call_0", "one"),
                tool("call_1", "two")
            ]),
        ),
        (
            "the same id twice",
            vec![called(&["a", "a"]), result(&["one", "two"])],
            json!([
                calls(&["a", "call_1"]),
                tool("a", "one"),
                tool("call_1", "two")
            ]),
        ),
        (
            "calls and results inside messages",
            vec![
                Entry::raw_message(calls(&["a"]).as_object().unwrap().clone()),
                Entry::raw_message(tool("a", "one").as_object().unwrap().clone()),
                Entry::raw_message(tool("z", "lost").as_object().unwrap().clone()),
            ],
            json!([calls(&["a"]), tool("a", "one")]),
        ),
        (
            "unknown roles",
            vec![
                Entry::message("wizard", "x"),
                Entry::raw_message(Map::new()),
                user("hi"),
            ],
            json!([{"role": "user", "content": "hi"}]),
        ),
    ];
    check_all(cases).await;
}
