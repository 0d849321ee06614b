//! Encodes recorded conversations in every format and checks that nothing is lost.

use std::collections::BTreeSet;
use std::sync::Arc;

use bub_model::{ChatRequest, Quirks, WireFormat};
use serde_json::Value;

use super::fixtures;

#[bub_testkit::needs_fixtures]
#[test]
fn recorded_conversations_survive_every_encoding() {
    let recordings = fixtures::all();
    let mut count = 0;
    for (file, recorded) in recordings
        .iter()
        .filter(|row| row.api == "openai-chat")
        .filter_map(fixtures::Recording::request)
    {
        let list = |key: &str| Arc::new(recorded[key].as_array().cloned().unwrap_or_default());
        let request = ChatRequest {
            model: "m".into(),
            messages: list("messages"),
            tools: list("tools"),
            ..ChatRequest::default()
        };
        for wire in WireFormat::ALL {
            let body: Value =
                serde_json::from_slice(&wire.encode(&request, &Quirks::default()).body).unwrap();
            if wire == WireFormat::ChatCompletions {
                assert_eq!(body["messages"], recorded["messages"], "{file}");
                assert!(
                    request.tools.is_empty() || body["tools"] == recorded["tools"],
                    "{file}"
                );
                continue;
            }
            let sent = strings(&body);
            for message in request.messages.iter() {
                for text in texts(message) {
                    let found = sent.iter().any(|sent| sent.contains(text));
                    assert!(found, "{file}: {text:?} is lost in {}", wire.name());
                }
            }
            for name in request
                .tools
                .iter()
                .filter_map(|tool| tool["function"]["name"].as_str())
            {
                assert!(sent.contains(name), "{file}: {name}");
            }
        }
        count += 1;
    }
    println!("{count} recorded conversations");
    assert!(count > 20);
}

/// Returns all texts and tool names of a message.
fn texts(message: &Value) -> Vec<&str> {
    let content = &message["content"];
    let parts = content
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|part| part["text"].as_str());
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let names = calls.filter_map(|call| call["function"]["name"].as_str());
    // One format sends results that are JSON objects as objects.
    let whole = content
        .as_str()
        .filter(|text| !text.trim_start().starts_with('{'));
    whole
        .into_iter()
        .chain(parts)
        .chain(names)
        .filter(|text| !text.trim().is_empty())
        .collect()
}

fn strings(value: &Value) -> BTreeSet<&str> {
    match value {
        Value::String(text) => BTreeSet::from([text.as_str()]),
        Value::Array(items) => items.iter().flat_map(strings).collect(),
        Value::Object(fields) => fields.values().flat_map(strings).collect(),
        _ => BTreeSet::new(),
    }
}
