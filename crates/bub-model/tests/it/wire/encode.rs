//! Tests of encoded requests in each format.

use std::sync::Arc;

use bub_model::{ChatRequest, EffortForm, Quirks, WireFormat};
use serde_json::{Map, Value, json};

pub(crate) fn request(messages: Value) -> ChatRequest {
    let Value::Array(messages) = messages else {
        panic!("a list of messages")
    };
    ChatRequest {
        model: "m".into(),
        messages: Arc::new(messages),
        max_tokens: Some(100),
        stream: true,
        ..ChatRequest::default()
    }
}

pub(crate) fn encode(wire: WireFormat, request: &ChatRequest, quirks: &Quirks) -> Value {
    serde_json::from_slice(&wire.encode(request, quirks).body).unwrap()
}

fn pretty(body: &Value) -> String {
    serde_json::to_string_pretty(body).unwrap()
}

pub(crate) fn plain(wire: WireFormat, messages: Value) -> Value {
    encode(wire, &request(messages), &Quirks::default())
}

fn object(value: Value) -> Map<String, Value> {
    let Value::Object(fields) = value else {
        panic!("an object")
    };
    fields
}

fn weather_tool() -> Value {
    json!({"type": "function", "function": {"name": "weather", "description": "Looks outside", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}})
}

pub(crate) fn call(id: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "weather", "arguments": arguments}})
}

/// Returns a conversation with all kinds of messages.
fn conversation() -> Value {
    json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Oslo?"},
        {"role": "assistant", "content": "Looking.", "tool_calls": [call("c1", "{\"city\":\"Oslo\"}"), call("c2", "")]},
        {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "cold"},
        {"role": "tool", "tool_call_id": "c2", "name": "weather", "content": "{\"sky\":\"gray\"}"},
        {"role": "user", "content": "Thanks"},
    ])
}

/// H-82, H-83.
#[test]
fn chat_completions_send_what_the_python_version_sends() {
    let mut request = request(conversation());
    request.tools = Arc::new(vec![weather_tool()]);
    let http = WireFormat::ChatCompletions.encode(&request, &Quirks::default());
    let body: Value = serde_json::from_slice(&http.body).unwrap();
    assert_eq!(http.path, "/chat/completions");
    insta::assert_snapshot!("chat_completions", pretty(&body));
}

/// H-82: later values override earlier ones.
#[test]
fn arguments_beat_each_other_in_order() {
    let mut request = request(json!([]));
    request.extra = object(
        json!({"temperature": 1, "top_p": 0.5, "model": "x", "max_tokens": 7, "reasoning_effort": "low", "stream": false}),
    );
    request.reasoning_effort = Some("high".into());
    let quirks = Quirks {
        extra_body: object(json!({"temperature": 2, "stream": false})),
        ..Quirks::default()
    };
    let body = encode(WireFormat::ChatCompletions, &request, &quirks);
    assert_eq!(
        body,
        json!({"temperature": 2, "top_p": 0.5, "model": "m", "stream": true, "messages": [],
            "max_completion_tokens": 100, "stream_options": {"include_usage": true}, "reasoning_effort": "high"})
    );
}

#[test]
fn without_a_stream_no_stream_options() {
    let mut request = request(json!([]));
    request.stream = false;
    let body = encode(WireFormat::ChatCompletions, &request, &Quirks::default());
    assert_eq!(
        (&body["stream"], body.get("stream_options")),
        (&json!(false), None)
    );
}

/// H-82: the effort is sent in the form that the server expects.
#[test]
fn effort_takes_the_form_of_the_server() {
    let mut request = request(json!([{"role": "user", "content": "x"}]));
    let mut body = |wire: WireFormat, model: &str, effort: &str, form: EffortForm| {
        request.model = model.into();
        request.reasoning_effort = Some(effort.into());
        encode(
            wire,
            &request,
            &Quirks {
                effort: form,
                ..Quirks::default()
            },
        )
    };
    let chat = WireFormat::ChatCompletions;
    assert_eq!(
        body(chat, "m", "low", EffortForm::ReasoningObject)["reasoning"],
        json!({"effort": "low"})
    );
    assert_eq!(
        body(chat, "m", "low", EffortForm::ThinkingSwitch)["thinking"],
        json!({"type": "enabled"})
    );
    assert_eq!(
        body(chat, "m", "none", EffortForm::ThinkingSwitch)["thinking"],
        json!({"type": "disabled"})
    );
    assert_eq!(
        body(chat, "m", "auto", EffortForm::Standard).get("reasoning_effort"),
        None
    );
    assert_eq!(
        body(chat, "m", "high", EffortForm::Omit).get("reasoning_effort"),
        None
    );
    assert_eq!(
        body(WireFormat::Responses, "m", "high", EffortForm::Standard)["reasoning"],
        json!({"effort": "high"})
    );
    // H-92.
    for (effort, sent) in [
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "medium"),
        ("xhigh", "xhigh"),
        ("max", "max"),
    ] {
        let body = body(WireFormat::Messages, "m", effort, EffortForm::Standard);
        assert_eq!(
            (&body["thinking"], &body["output_config"]),
            (&json!({"type": "adaptive"}), &json!({"effort": sent}))
        );
    }
    assert_eq!(
        body(WireFormat::Messages, "m", "none", EffortForm::Standard)["thinking"],
        json!({"type": "disabled"})
    );
    assert_eq!(
        body(WireFormat::Messages, "m", "auto", EffortForm::Standard).get("thinking"),
        None
    );
    let gemini = WireFormat::GenerateContent;
    let thinking = |body: Value| body["generationConfig"]["thinkingConfig"].clone();
    assert_eq!(
        thinking(body(gemini, "gemini-2.5-pro", "low", EffortForm::Standard)),
        json!({"includeThoughts": true, "thinkingBudget": 1024})
    );
    assert_eq!(
        thinking(body(gemini, "gemini-3-pro", "max", EffortForm::Standard)),
        json!({"includeThoughts": true, "thinkingLevel": "high"})
    );
}

/// H-92.
#[test]
fn messages_become_blocks() {
    let mut request = request(conversation());
    request.tools = Arc::new(vec![weather_tool()]);
    let http = WireFormat::Messages.encode(&request, &Quirks::default());
    assert_eq!(
        (&*http.path, &*http.headers),
        (
            "/v1/messages",
            &[("anthropic-version", "2023-06-01".to_owned())][..]
        )
    );
    let body: Value = serde_json::from_slice(&http.body).unwrap();
    insta::assert_snapshot!("messages", pretty(&body));
}

/// H-92: system messages are joined, and `max_tokens` is always sent.
#[test]
fn system_messages_are_joined_and_a_limit_is_always_sent() {
    let mut request = request(
        json!([{"role": "system", "content": "a"}, {"role": "user", "content": "x"}, {"role": "system", "content": "b"}]),
    );
    request.max_tokens = None;
    let body = encode(WireFormat::Messages, &request, &Quirks::default());
    assert_eq!(
        (&body["system"], body["max_tokens"].is_u64()),
        (&json!("a\nb"), true)
    );
    request.extra = object(json!({"max_tokens": 5}));
    assert_eq!(
        encode(WireFormat::Messages, &request, &Quirks::default())["max_tokens"],
        5
    );
}

#[test]
fn repeated_and_odd_call_ids_become_acceptable() {
    let step = |id: &str| {
        [
            json!({"role": "assistant", "tool_calls": [call(id, "{}")]}),
            json!({"role": "tool", "tool_call_id": id, "content": "x"}),
        ]
    };
    let messages = [
        &[json!({"role": "user", "content": "x"})][..],
        &step("call_0"),
        &step("call_0"),
        &step("fc:1.2"),
    ]
    .concat();
    let body = plain(WireFormat::Messages, messages.into());
    let ids: Vec<_> = [1, 3, 5]
        .iter()
        .map(|at| body["messages"][*at]["content"][0]["id"].as_str().unwrap())
        .collect();
    let results: Vec<_> = [2, 4, 6]
        .iter()
        .map(|at| {
            body["messages"][*at]["content"][0]["tool_use_id"]
                .as_str()
                .unwrap()
        })
        .collect();
    assert_eq!(
        (&ids, ids.clone()),
        (&results, vec!["call_0", "call_0_2", "fc_1_2"])
    );
}

/// H-97.
#[test]
fn messages_become_items() {
    let mut request = request(conversation());
    request.tools = Arc::new(vec![weather_tool()]);
    let body = encode(WireFormat::Responses, &request, &Quirks::default());
    insta::assert_snapshot!("responses", pretty(&body));
    // A result without an id belongs to no call.
    let orphan = plain(
        WireFormat::Responses,
        json!([{"role": "tool", "content": "x"}]),
    );
    assert_eq!(orphan["input"], json!([]));
}

/// H-96: a server that requires instructions and rejects output limits.
#[test]
fn instructions_can_be_demanded_and_fields_refused() {
    let quirks = Quirks {
        default_instructions: Some("You are Codex.".into()),
        refused_fields: vec!["max_output_tokens".into(), "temperature".into()],
        default_body: object(json!({"text": {"verbosity": "medium"}})),
        ..Quirks::default()
    };
    let mut request = request(json!([{"role": "user", "content": "x"}]));
    request.extra = object(json!({"temperature": 1}));
    let body = encode(WireFormat::Responses, &request, &quirks);
    assert_eq!(body["instructions"], "You are Codex.");
    assert_eq!(
        (body.get("max_output_tokens"), body.get("temperature")),
        (None, None)
    );
    assert_eq!(body["text"], json!({"verbosity": "medium"}));
    // The fields of the caller are merged and take precedence.
    request.extra = object(json!({"text": {"format": {"type": "text"}}}));
    let body = encode(WireFormat::Responses, &request, &quirks);
    assert_eq!(
        body["text"],
        json!({"verbosity": "medium", "format": {"type": "text"}})
    );
    request.extra = object(json!({"text": {"verbosity": "low"}}));
    assert_eq!(
        encode(WireFormat::Responses, &request, &quirks)["text"],
        json!({"verbosity": "low"})
    );
}

#[test]
fn messages_become_contents() {
    let mut request = request(conversation());
    request.tools = Arc::new(vec![weather_tool()]);
    request.extra = object(
        json!({"temperature": 0, "stop": "END", "tool_choice": "required", "safetySettings": []}),
    );
    let http = WireFormat::GenerateContent.encode(&request, &Quirks::default());
    assert_eq!(http.path, "/models/m:streamGenerateContent?alt=sse");
    let body: Value = serde_json::from_slice(&http.body).unwrap();
    insta::assert_snapshot!("generate_content", pretty(&body));
    request.stream = false;
    request.model = "models/m".into();
    assert_eq!(
        WireFormat::GenerateContent
            .encode(&request, &Quirks::default())
            .path,
        "/models/m:generateContent"
    );
}

/// W-6: invalid arguments are sent back to the model in a form that servers accept.
#[test]
fn broken_arguments_never_break_the_next_request() {
    let messages = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": [call("c", "{\"city\": \"Os")]}]);
    let wrapped = json!({"invalid_arguments": "{\"city\": \"Os"});
    let chat = plain(WireFormat::ChatCompletions, messages.clone());
    let sent = chat["messages"][1]["tool_calls"][0]["function"]["arguments"]
        .as_str()
        .unwrap();
    assert_eq!(serde_json::from_str::<Value>(sent).unwrap(), wrapped);
    assert_eq!(
        plain(WireFormat::Messages, messages.clone())["messages"][1]["content"][0]["input"],
        wrapped
    );
    let responses = plain(WireFormat::Responses, messages.clone());
    assert_eq!(
        serde_json::from_str::<Value>(responses["input"][1]["arguments"].as_str().unwrap())
            .unwrap(),
        wrapped
    );
    assert_eq!(
        plain(WireFormat::GenerateContent, messages)["contents"][1]["parts"][0]["functionCall"]["args"],
        wrapped
    );
}

#[test]
fn a_conversation_never_opens_with_the_assistant_where_that_is_refused() {
    let messages = json!([{"role": "system", "content": "s"}, {"role": "assistant", "content": "earlier"}, {"role": "user", "content": "x"}]);
    assert_eq!(
        plain(WireFormat::Messages, messages.clone())["messages"][0]["role"],
        "user"
    );
    assert_eq!(
        plain(WireFormat::GenerateContent, messages.clone())["contents"][0]["role"],
        "user"
    );
    assert_eq!(
        plain(WireFormat::ChatCompletions, messages.clone())["messages"][1]["role"],
        "assistant"
    );
    let quirks = Quirks {
        open_with_user: true,
        ..Quirks::default()
    };
    let roles = |body: &Value, key: &str| -> Vec<String> {
        body[key]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| message["role"].as_str().unwrap().to_owned())
            .collect()
    };
    let chat = encode(
        WireFormat::ChatCompletions,
        &request(messages.clone()),
        &quirks,
    );
    assert_eq!(
        roles(&chat, "messages"),
        ["system", "user", "assistant", "user"]
    );
    let responses = encode(WireFormat::Responses, &request(messages), &quirks);
    assert_eq!(roles(&responses, "input"), ["user", "assistant", "user"]);
}

#[test]
fn quirks_come_from_config_and_typos_are_refused() {
    let quirks: Quirks =
        serde_json::from_value(json!({"max_tokens_field": "", "effort": "omit"})).unwrap();
    let body = encode(WireFormat::ChatCompletions, &request(json!([])), &quirks);
    assert_eq!(
        (body.get("max_tokens"), body.get("max_completion_tokens")),
        (None, None)
    );
    assert!(serde_json::from_value::<Quirks>(json!({"stream_option": false})).is_err());
}

#[test]
fn every_format_has_a_name_and_its_own_header() {
    let key = bub_settings::Secret::from("sk-test-123456");
    for wire in WireFormat::ALL {
        assert_eq!(WireFormat::from_name(wire.name()), Some(wire));
        let (name, value) = wire.key_header(&key);
        assert!(
            value.expose().ends_with("sk-test-123456") && !format!("{value:?}").contains("sk-test"),
            "{name}"
        );
    }
    assert_eq!(WireFormat::from_name("nonsense"), None);
}
