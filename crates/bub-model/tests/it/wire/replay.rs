//! Tests that provider state is sent back to its provider only, at its original position.

use bub_model::{ChatRequest, Completion, Quirks, WireFormat};
use serde_json::{Value, json};
use std::sync::Arc;

use super::support::{DecodeBody as _, complete, message, sse};

fn body(wire: WireFormat, quirks: &Quirks, messages: Vec<Value>) -> Value {
    let request = ChatRequest {
        model: "gemini-3-pro".into(),
        messages: Arc::new(messages),
        ..ChatRequest::default()
    };
    serde_json::from_slice(&wire.encode(&request, quirks).body).unwrap()
}

/// Returns the request that follows an answer and its tool results.
fn next(wire: WireFormat, answer: &Completion) -> Value {
    let mut messages = vec![json!({"role": "user", "content": "go"}), message(answer)];
    for call in &answer.tool_calls {
        messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "done"}));
    }
    body(wire, &Quirks::default(), messages)
}

/// W-7: signatures of thinking are replayed at their position between the other blocks.
#[test]
fn signed_thinking_returns_to_its_place() {
    let block = |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let frames = [
        json!({"type": "message_start", "message": {"id": "m"}}),
        block(
            0,
            json!({"type": "thinking", "thinking": "t1", "signature": "s1"}),
        ),
        block(1, json!({"type": "text", "text": "Grüße"})),
        block(2, json!({"type": "redacted_thinking", "data": "xyz"})),
        block(
            3,
            json!({"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}),
        ),
        block(4, json!({"type": "thinking", "thinking": "unsigned"})),
        block(
            5,
            json!({"type": "tool_use", "id": "c2", "name": "g", "input": {}}),
        ),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}),
        json!({"type": "message_stop"}),
    ];
    let answer = complete(WireFormat::Messages, &sse(&frames)).unwrap();
    let sent = next(WireFormat::Messages, &answer);
    let expected = json!([
        {"type": "thinking", "thinking": "t1", "signature": "s1"},
        {"type": "text", "text": "Grüße"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "c2", "name": "g", "input": {}},
    ]);
    assert_eq!(sent["messages"][1]["content"], expected);
    // Other formats ignore the state.
    for wire in [
        WireFormat::ChatCompletions,
        WireFormat::Responses,
        WireFormat::GenerateContent,
    ] {
        let text = next(wire, &answer).to_string();
        assert!(
            !text.contains("s1") && !text.contains("provider_state"),
            "{text}"
        );
    }
}

#[test]
fn state_that_no_longer_fits_gives_its_blocks_first() {
    let frames = [
        json!({"type": "message_start", "message": {"id": "m"}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "long text"}}),
        json!({"type": "content_block_start", "index": 1, "content_block": {"type": "thinking", "thinking": "t", "signature": "s"}}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
    ];
    let mut message = message(&complete(WireFormat::Messages, &sse(&frames)).unwrap());
    message["content"] = json!("changed");
    let sent = body(
        WireFormat::Messages,
        &Quirks::default(),
        vec![json!({"role": "user", "content": "x"}), message],
    );
    let kinds: Vec<_> = sent["messages"][1]["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|block| &block["type"])
        .collect();
    assert_eq!(kinds, ["thinking", "text"]);
}

/// H-96: `reasoning.encrypted_content` is requested and sent back.
#[test]
fn encrypted_reasoning_returns_before_its_call() {
    let reasoning = json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "secret", "status": "completed"});
    let output = json!([
        reasoning,
        {"type": "message", "id": "m", "phase": "commentary", "content": [{"type": "output_text", "text": "wait"}]},
        {"type": "function_call", "id": "fc", "call_id": "c1", "name": "f", "arguments": "{}"},
    ]);
    let whole = json!({"status": "completed", "output": output}).to_string();
    let answer = WireFormat::Responses
        .decode(whole.as_bytes(), &Quirks::default())
        .unwrap();
    let sent = next(WireFormat::Responses, &answer);
    assert_eq!(sent["include"], json!(["reasoning.encrypted_content"]));
    assert_eq!(
        sent["input"],
        json!([
            {"role": "user", "content": "go"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "secret"},
            {"role": "assistant", "content": "wait", "phase": "commentary"},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "status": "completed"},
            {"type": "function_call_output", "call_id": "c1", "output": "done"},
        ])
    );
}

#[test]
fn thought_signatures_return_on_their_parts() {
    let parts = json!([
        {"text": "thinking", "thought": true},
        {"text": "Hé "}, {"text": "there", "thoughtSignature": "s0"},
        {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "s1"},
        {"functionCall": {"name": "g", "args": {}}},
        {"text": "", "thoughtSignature": "s2"},
    ]);
    let whole =
        json!({"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}).to_string();
    let answer = WireFormat::GenerateContent
        .decode(whole.as_bytes(), &Quirks::default())
        .unwrap();
    let sent = next(WireFormat::GenerateContent, &answer);
    assert_eq!(
        sent["contents"][1]["parts"],
        json!([
            {"text": "Hé "}, {"text": "there", "thoughtSignature": "s0"},
            {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "s1"},
            {"functionCall": {"name": "g", "args": {}}},
            {"text": "", "thoughtSignature": "s2"},
        ])
    );
    let results = sent["contents"][2]["parts"].as_array().unwrap();
    let names: Vec<_> = results
        .iter()
        .map(|part| &part["functionResponse"]["name"])
        .collect();
    assert_eq!(names, ["f", "g"], "one content for all results");
}

#[test]
fn calls_of_another_model_carry_the_documented_stand_in() {
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let messages = vec![
        json!({"role": "user", "content": "x"}),
        json!({"role": "assistant", "tool_calls": [call.clone(), call]}),
    ];
    let sent = body(WireFormat::GenerateContent, &Quirks::default(), messages);
    let parts = &sent["contents"][1]["parts"];
    assert_eq!(
        parts[0]["thoughtSignature"],
        "skip_thought_signature_validator"
    );
    assert_eq!(parts[1].get("thoughtSignature"), None);
}

#[test]
fn reasoning_details_are_joined_and_returned() {
    let delta = |detail: Value, reasoning: Value| json!({"choices": [{"delta": {"reasoning": reasoning, "reasoning_details": [detail]}}]});
    let frames = [
        delta(
            json!({"type": "reasoning.text", "index": 0, "text": "be", "format": "x"}),
            json!("be"),
        ),
        delta(
            json!({"type": "reasoning.text", "index": 0, "text": "cause"}),
            json!("cause"),
        ),
        delta(
            json!({"type": "reasoning.text", "index": 0, "signature": "s"}),
            Value::Null,
        ),
        delta(
            json!({"type": "reasoning.encrypted", "index": 1, "data": "d"}),
            Value::Null,
        ),
        json!({"choices": [{"delta": {"content": "so"}, "finish_reason": "stop"}]}),
    ];
    let answer = complete(WireFormat::ChatCompletions, &sse(&frames)).unwrap();
    assert_eq!(answer.reasoning, "because");
    let message = &next(WireFormat::ChatCompletions, &answer)["messages"][1];
    let expected = json!([
        {"type": "reasoning.text", "index": 0, "text": "because", "format": "x", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 1, "data": "d"},
    ]);
    assert_eq!(
        (&message["reasoning_details"], message.get("provider_state")),
        (&expected, None)
    );
}

#[test]
fn reasoning_text_is_returned_only_where_it_is_wanted() {
    let frames = [
        json!({"choices": [{"delta": {"reasoning_content": "be"}}]}),
        json!({"choices": [{"delta": {"reasoning_content": "cause"}}]}),
        json!({"choices": [{"delta": {"content": "so"}, "finish_reason": "stop"}]}),
    ];
    assert_eq!(
        complete(WireFormat::ChatCompletions, &sse(&frames))
            .unwrap()
            .provider_state,
        None
    );
    let quirks = Quirks {
        replay_reasoning: true,
        ..Quirks::default()
    };
    let (events, _) =
        super::support::stream_with(WireFormat::ChatCompletions, &quirks, [&*sse(&frames)]);
    let message = message(&super::support::fold(events).unwrap());
    let sent = body(WireFormat::ChatCompletions, &quirks, vec![message]);
    assert_eq!(sent["messages"][0]["reasoning_content"], "because");
}
