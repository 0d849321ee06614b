//! A session that moves between the Python version and this one. Release 0.5.1 wrote the tape
//! `tests/data/python-session.jsonl`: a deferred tool is loaded and called, then code mode is enabled, and code calls it.
//! The text of its system prompts is replaced.

use bub_kernel::{ChannelMessage, FrameworkBuilder, tool};
use bub_tape::{Entry, StepRecord};
use bub_testkit::model::{ModelServer, Reply, Request};
use serde_json::{Value, json};

use crate::{harness::AgentFixture, recording::tape_of};

const PYTHON_TAPE: &str = include_str!("../data/python-session.jsonl");

/// Add two numbers.
#[tool(crate = bub_kernel, name = "lab.add", deferred)]
async fn lab_add(a: i64, b: i64) -> i64 {
    a + b
}

fn with_lab(builder: FrameworkBuilder) -> FrameworkBuilder {
    builder.tool(lab_add())
}

/// What the Python version reads from a tape.
#[derive(Debug, Default)]
struct PythonReading {
    /// The messages after the last anchor.
    messages: Vec<Value>,
    loaded_tools: Vec<String>,
    code_mode: bool,
}

/// Reads a tape by the rules of the Python version: entries after the last anchor are messages; results belong to the
/// calls of the entry before them, by position; the events `tool.loaded` and `code_mode_switch` are read from the
/// complete tape.
fn read_as_python(tape: &str) -> PythonReading {
    let mut reading = PythonReading::default();
    let mut pending: Vec<Value> = Vec::new();
    for line in tape.lines() {
        let entry: Value = serde_json::from_str(line).unwrap();
        let keys: Vec<&String> = entry.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["id", "kind", "payload", "meta", "date"], "{line}");
        let payload = &entry["payload"];
        match entry["kind"].as_str().unwrap() {
            "anchor" => (reading.messages, pending) = (Vec::new(), Vec::new()),
            "message" => reading.messages.push(payload.clone()),
            "tool_call" => {
                pending.clone_from(payload["calls"].as_array().unwrap());
                let content = payload["content"].as_str().unwrap_or_default();
                let message =
                    json!({"role": "assistant", "content": content, "tool_calls": pending});
                reading.messages.push(message);
            }
            "tool_result" => {
                for (index, result) in payload["results"].as_array().unwrap().iter().enumerate() {
                    let call = pending.get(index).unwrap_or(&Value::Null);
                    let (id, name) = (&call["id"], &call["function"]["name"]);
                    // Values other than text are rendered as JSON.
                    let text = result.as_str().map(str::to_owned);
                    let text = text.unwrap_or_else(|| result.to_string());
                    let message =
                        json!({"role": "tool", "content": text, "tool_call_id": id, "name": name});
                    reading.messages.push(message);
                }
                pending.clear();
            }
            "event" if payload["name"] == "tool.loaded" => {
                let names = payload["data"]["names"].as_array().unwrap().iter();
                let names = names.map(|name| name.as_str().unwrap().to_owned());
                reading.loaded_tools.extend(names);
            }
            "event" if payload["name"] == "code_mode_switch" => {
                reading.code_mode = payload["data"]["code_mode"].as_bool().unwrap();
            }
            _ => {}
        }
    }
    reading
}

/// Fails unless each response with calls is followed by one result per call and nothing else, as providers require.
fn assert_valid(messages: &[Value]) {
    let ids = |calls: &Value| -> Vec<Value> {
        let calls = calls.as_array().into_iter().flatten();
        calls.map(|call| call["id"].clone()).collect()
    };
    let mut open: Vec<Value> = Vec::new();
    for message in messages {
        if message["role"] == "tool" {
            let position = open.iter().position(|id| *id == message["tool_call_id"]);
            open.remove(position.unwrap_or_else(|| panic!("no call for {message}")));
        } else {
            assert!(open.is_empty(), "no results for {open:?}: {messages:#?}");
            open = ids(&message["tool_calls"]);
        }
    }
    assert!(open.is_empty(), "no results for {open:?}: {messages:#?}");
}

fn tools(request: &Request) -> Vec<String> {
    let body = request.json();
    let names = body["tools"].as_array().unwrap().iter();
    names
        .map(|tool| tool["function"]["name"].as_str().unwrap().to_owned())
        .collect()
}

async fn say(fixture: &AgentFixture, text: &str) -> String {
    let message = ChannelMessage::new("s", "cli", text);
    fixture.own_turn(message).await.unwrap().model_output
}

fn bash_call(id: &str) -> StepRecord {
    let function = json!({"name": "bash", "arguments": "{\"command\": \"sleep 300\"}"});
    let mut step = StepRecord::new("run-killed");
    step.tool_calls = vec![json!({"id": id, "type": "function", "function": function})];
    step
}

// L6, P-55, P-58, P-71, P-73: the session continues with its loaded tools and in code mode, and the Python version can
// read what this version adds.
#[tokio::test]
async fn a_session_with_deferred_tools_and_code_mode_moves_between_both_versions() {
    let reading = read_as_python(PYTHON_TAPE);
    assert!(reading.code_mode && reading.loaded_tools == ["lab.add"]);
    assert_valid(&reading.messages);

    let server = ModelServer::start();
    let fixture = AgentFixture::asking_so(&server.url(), &[], with_lab);
    let running = fixture.framework.open_scope().await.unwrap();
    let name = tape_of(&fixture, "s").name().to_string();
    let file = fixture.dir.path().join(format!("home/tapes/{name}.jsonl"));
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, PYTHON_TAPE).unwrap();

    let code = json!({"code": "print(await tools.lab_add(a=2, b=2))"}).to_string();
    server.script(Reply::new().call("a", "run_code", &code));
    server.script(Reply::text("four"));
    assert_eq!(say(&fixture, "with code again").await, "four");
    say(&fixture, ",code_mode false").await;
    server.script(Reply::new().call("b", "lab_add", "{\"a\": 3, \"b\": 3}"));
    server.script(Reply::text("six"));
    assert_eq!(say(&fixture, "without code").await, "six");

    let requests = server.requests();
    let first = tools(&requests[0]);
    assert!(first[0] == "run_code" && !first.contains(&"lab_add".to_owned()));
    let last = tools(&requests[2]);
    assert_eq!(last[last.len() - 2..], ["tool_describe", "lab_add"]);
    for request in &requests {
        assert_valid(request.json()["messages"].as_array().unwrap());
    }
    let result = |number: usize| {
        requests[number].json()["messages"]
            .as_array()
            .unwrap()
            .last()
            .unwrap()["content"]
            .clone()
    };
    assert_eq!((result(1), result(3)), (json!("4\n"), json!("6")));

    let tape = std::fs::read_to_string(&file).unwrap();
    assert!(tape.starts_with(PYTHON_TAPE), "the tape only grows");
    let reading = read_as_python(&tape);
    assert_valid(&reading.messages);
    assert!(!reading.code_mode && reading.loaded_tools == ["lab.add"]);
    // The Python version would send the same conversation.
    let sent = requests[3].json()["messages"].as_array().unwrap().clone();
    let calls = |messages: &[Value]| -> Vec<(Value, Value, Value)> {
        let fields = |message: &Value| {
            (
                message["role"].clone(),
                message["content"].clone(),
                message["tool_call_id"].clone(),
            )
        };
        messages
            .iter()
            .filter(|message| message["tool_calls"].is_null())
            .map(fields)
            .collect()
    };
    let read = &reading.messages[..reading.messages.len() - 1];
    assert_eq!(calls(&sent[1..]), calls(read));
    running.close().await.unwrap();
}

// L3, L6: `kill -9` in a tool. The Python version does not complete the record: its provider rejects the request, and
// it records only events.
#[tokio::test]
async fn a_turn_that_was_killed_in_a_tool_is_completed_also_behind_a_failure_of_the_python_version()
{
    for has_failure in [false, true] {
        let server = ModelServer::start();
        server.otherwise(Reply::text("back"));
        let fixture = AgentFixture::asking_so(&server.url(), &[], with_lab);
        let running = fixture.framework.open_scope().await.unwrap();
        let tape = tape_of(&fixture, "s");
        let file = fixture
            .dir
            .path()
            .join(format!("home/tapes/{}.jsonl", tape.name()));
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, PYTHON_TAPE).unwrap();
        let question = Entry::message("user", "go").with_meta("run_id", "run-killed");
        tape.append(question).await.unwrap();
        tape.append(Entry::event(
            "loop.start",
            Some(json!({"model": "openai:fake"})),
        ))
        .await
        .unwrap();
        tape.append(Entry::event("loop.step.start", Some(json!({"step": 1}))))
            .await
            .unwrap();
        tape.record_step(bash_call("killed")).await.unwrap();
        if has_failure {
            let prompt = "sender_id=human|channel=$cli|chat_id=local\n---Date: 2026-11-18T07:16:32+00:00---\nstill there?";
            for (name, data) in [
                (
                    "loop.start",
                    json!({"model": "openai:fake", "prompt": prompt, "allowed_skills": null, "allowed_tools": null}),
                ),
                ("loop.step.start", json!({"step": 1, "prompt": prompt})),
                (
                    "loop.step",
                    json!({"step": 1, "elapsed_ms": 3012, "status": "error", "error": "Error code: 400"}),
                ),
            ] {
                tape.append(Entry::event(name, Some(data))).await.unwrap();
            }
        }
        assert_eq!(say(&fixture, "and now?").await, "back");
        let reading = read_as_python(&std::fs::read_to_string(&file).unwrap());
        assert_valid(&reading.messages);
        let results = reading
            .messages
            .iter()
            .filter(|message| message["tool_call_id"] == "killed");
        let results: Vec<_> = results.map(|message| &message["content"]).collect();
        assert_eq!(results, [bub_tape::INTERRUPTED_RESULT]);
        running.close().await.unwrap();
    }
}
