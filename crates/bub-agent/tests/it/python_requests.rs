//! Compares requests with those of the Python version, release 0.5.1. They were recorded with the same messages and model
//! answers; their system prompts are not kept.

use std::sync::Mutex;

use bub_kernel::{ChannelMessage, MediaItem, MediaKind, Result, Turn, hooks};
use bub_testkit::model::{ModelServer, Reply, Request};
use serde_json::{Value, json};

use crate::{
    handoff::asks_for_summary,
    harness::{AgentFixture, owned},
};

const RECORDED: &str = include_str!("python_requests.json");

/// Sends a message to the session while its turn runs.
struct SteeringPlugin(Mutex<Option<String>>);

#[hooks(crate = bub_kernel)]
impl SteeringPlugin {
    async fn after_tool_call(&self, turn: &Turn) -> Result<Option<Value>> {
        let text = self.0.lock().unwrap().take();
        if let Some(text) = text {
            let message = owned(message(&text));
            let framework = turn.framework();
            assert!(framework.steer_message(turn.session_id(), message).await?);
        }
        Ok(None)
    }
}

fn message(text: &str) -> ChannelMessage {
    let message = ChannelMessage::new("s", "cli", text).chat_id("local");
    message.context("sender_id", "human")
}

fn reply(step: &Value) -> Reply {
    let text = |key: &str| step[key].as_str();
    match (text("say"), text("call"), text("message")) {
        (Some(text), ..) => Reply::text(text),
        (_, Some(name), _) => Reply::new().call("call_1", name, &step["arguments"].to_string()),
        (.., reason) => Reply::status(400).message(reason.unwrap()),
    }
}

/// Returns a request in the form of the recording: without the text of the system prompt, dates and definitions.
fn normalize(request: &Request) -> Value {
    let mut body = request.json();
    let messages = body["messages"].as_array_mut().unwrap();
    // A documented difference: the model sees the summary of a handoff.
    messages.retain(|message| {
        let text = message["content"].as_str().unwrap_or_default();
        !text.starts_with("<handoff")
    });
    for message in messages {
        if message["role"] == "system" {
            message["content"] = "…".into();
        }
        for pointer in ["/content", "/content/0/text"] {
            if let Some(Value::String(text)) = message.pointer_mut(pointer) {
                // Another one: files are saved, and the context line says where.
                let lines = text
                    .lines()
                    .map(|line| match line.split_once("|files_saved=") {
                        Some((context, _)) => context,
                        None if line.starts_with("---Date: ") => "---Date: …---",
                        None => line,
                    });
                *text = lines.collect::<Vec<_>>().join("\n");
            }
        }
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            // Spaces in arguments come from the model.
            let arguments = call["function"]["arguments"].as_str().unwrap();
            let arguments: Value = serde_json::from_str(arguments).unwrap();
            call["function"]["arguments"] = arguments;
        }
    }
    let names = body["tools"].as_array().into_iter().flatten();
    let names: Vec<Value> = names.map(|tool| tool["function"]["name"].clone()).collect();
    body["tools"] = names.into();
    body
}

/// Parses the arguments of the recorded tool calls, as [`normalize`] does.
fn parse_arguments(recorded: &mut Value) {
    for message in recorded["messages"].as_array_mut().unwrap() {
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            let arguments = call["function"]["arguments"].as_str().unwrap();
            call["function"]["arguments"] = serde_json::from_str(arguments).unwrap();
        }
    }
}

// P-34, P-35, P-40, P-41, P-45, P-56, P-70, P-128, P-133: the same fields, messages and order of tools.
#[tokio::test]
async fn requests_have_the_form_of_the_python_version() {
    let recorded: Value = serde_json::from_str(RECORDED).unwrap();
    for (name, scenario) in recorded["scenarios"].as_object().unwrap() {
        let server = ModelServer::start();
        for step in scenario["replies"].as_array().unwrap() {
            server.script(reply(step));
            // Another documented difference: after an overflow, the model sums up the conversation.
            if step["message"].is_string() {
                server.script(Reply::text("Goal: …"));
            }
        }
        let url = format!("{}/v1", server.url());
        let variables = [
            ("BUB_MODEL", "openai:fake"),
            ("BUB_OPENAI_API_BASE", &url),
            ("BUB_OPENAI_API_KEY", "key-of-a-test"),
        ];
        let steering = scenario["steer"].as_str().map(str::to_owned);
        let fixture = AgentFixture::asking_so(&server.url(), &variables, |builder| {
            builder.plugin("steering", SteeringPlugin(Mutex::new(steering)))
        });
        std::fs::write(fixture.dir.path().join("workspace/a.txt"), "text\n").unwrap();
        let running = fixture.framework.open_scope().await.unwrap();
        for text in scenario["messages"].as_array().unwrap() {
            let mut message = message(text.as_str().unwrap());
            if let Some(url) = scenario["image"].as_str() {
                message = message.media(MediaItem::from_url(MediaKind::Image, "image/png", url));
            }
            fixture.own_turn(message).await.unwrap();
        }
        running.close().await.unwrap();
        let (mut requests, expected) =
            (server.requests(), scenario["requests"].as_array().unwrap());
        requests.retain(|request| !asks_for_summary(request));
        assert_eq!(requests.len(), expected.len(), "{name}");
        for (number, (request, expected)) in requests.iter().zip(expected).enumerate() {
            let (mut body, mut expected) = (normalize(request), expected.clone());
            parse_arguments(&mut expected);
            let [ours, theirs] = [&mut body, &mut expected].map(|body| body["tools"].take());
            let mut ours = ours.as_array().unwrap().iter();
            // `web_fetch` is a plugin here. Further tools are listed in the docs.
            let theirs = theirs.as_array().unwrap().iter();
            for tool in theirs.filter(|tool| *tool != "web_fetch") {
                assert!(
                    ours.any(|name| name == tool),
                    "{name}, request {number}: {tool}"
                );
            }
            let fields = recorded["fields"].as_object().unwrap();
            let expected_body = expected.as_object_mut().unwrap();
            expected_body.extend(fields.clone());
            expected_body.insert("model".to_owned(), json!("fake"));
            assert_eq!(body, expected, "{name}, request {number}");
        }
    }
}
