//! Reference decoder: slow and simple code that shares nothing with the real decoders. It parses complete frames as JSON
//! values and folds them into maps.

use std::collections::BTreeMap;

use serde_json::Value;

/// The expected result of decoding an answer.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Expected {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    /// Name and arguments of each call. Arguments that are not valid JSON stay a string.
    pub(crate) calls: Vec<(String, Value)>,
    pub(crate) ids: Vec<String>,
    /// Token counts: prompt, completion, total, cached, reasoning.
    pub(crate) usage: Option<[Option<u64>; 5]>,
    pub(crate) finish: String,
    pub(crate) error: bool,
}

/// Returns the JSON frames of a recorded stream.
pub(crate) fn frames(bytes: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(bytes).unwrap().replace("\r\n", "\n");
    text.split("\n\n")
        .filter_map(|event| {
            let data: Vec<_> = event
                .lines()
                .filter_map(|line| line.strip_prefix("data:"))
                .map(str::trim)
                .collect();
            let data = data.join("\n");
            (!data.is_empty() && data != "[DONE]").then(|| serde_json::from_str(&data).unwrap())
        })
        .collect()
}

pub(crate) fn expect(api: &str, frames: &[Value]) -> Expected {
    match api {
        "openai-chat" => chat(frames),
        "openai-responses" => responses(frames),
        "anthropic-messages" => messages(frames),
        "gemini" => gemini(frames),
        other => panic!("no reference for {other}"),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

fn arguments(text: &str) -> Value {
    let text = if matches!(text, "" | "null") {
        "{}"
    } else {
        text
    };
    serde_json::from_str(text).unwrap_or_else(|_| Value::from(text))
}

fn counts(usage: &Value, paths: [&str; 5]) -> Option<[Option<u64>; 5]> {
    usage
        .is_object()
        .then(|| paths.map(|path| usage.pointer(path).and_then(Value::as_u64)))
}

fn chat(frames: &[Value]) -> Expected {
    let mut expected = Expected::default();
    let mut calls: BTreeMap<u64, (String, String, String)> = BTreeMap::new();
    for frame in frames {
        expected.error |= !frame["error"].is_null();
        let usage = if frame["usage"].is_object() {
            &frame["usage"]
        } else {
            &frame["x_groq"]["usage"]
        };
        let usage = counts(
            usage,
            [
                "/prompt_tokens",
                "/completion_tokens",
                "/total_tokens",
                "/prompt_tokens_details/cached_tokens",
                "/completion_tokens_details/reasoning_tokens",
            ],
        );
        expected.usage = usage.or(expected.usage);
        let choice = &frame["choices"][0];
        let delta = if choice["delta"].is_object() {
            &choice["delta"]
        } else {
            &choice["message"]
        };
        for part in delta["content"].as_array().into_iter().flatten() {
            expected.text += text(&part["text"]);
            for thought in part["thinking"].as_array().into_iter().flatten() {
                expected.reasoning += text(&thought["text"]);
            }
        }
        expected.text += text(&delta["content"]);
        expected.text += text(&delta["refusal"]);
        if !text(&delta["refusal"]).is_empty() {
            expected.finish = "refusal".into();
        }
        let aliases = ["reasoning_content", "reasoning"];
        expected.reasoning += aliases
            .iter()
            .map(|key| text(&delta[key]))
            .find(|text| !text.is_empty())
            .unwrap_or("");
        for (position, call) in delta["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
            .enumerate()
        {
            let index = call["index"].as_u64().unwrap_or(position as u64);
            let known = calls.entry(index).or_default();
            let id = text(&call["id"]);
            known.0 = if id.is_empty() {
                std::mem::take(&mut known.0)
            } else {
                id.into()
            };
            let name = text(&call["function"]["name"]);
            known.1 += if known.1 == name { "" } else { name };
            known.2 += text(&call["function"]["arguments"]);
        }
        if let Some(finish) = choice["finish_reason"].as_str()
            && expected.finish != "refusal"
        {
            expected.finish = finish.into();
        }
    }
    // Servers without a finish reason send `[DONE]`.
    if expected.finish.is_empty() {
        expected.finish = "stop".into();
    }
    for (id, name, json) in calls.into_values() {
        expected.calls.push((name, arguments(&json)));
        expected.ids.push(id);
    }
    expected
}

/// Reads the last event, which repeats the complete answer. The deltas must add up to it.
fn responses(frames: &[Value]) -> Expected {
    let last = frames.last().unwrap();
    let response = if last["response"].is_object() {
        &last["response"]
    } else {
        last
    };
    let mut expected = Expected {
        finish: "stop".into(),
        ..Expected::default()
    };
    for item in response["output"].as_array().unwrap() {
        let parts = |key: &str| item[key].as_array().cloned().unwrap_or_default();
        match text(&item["type"]) {
            "message" => {
                for part in parts("content") {
                    expected.text += text(&part["text"]);
                    expected.text += text(&part["refusal"]);
                    if part["type"] == "refusal" {
                        expected.finish = "refusal".into();
                    }
                }
            }
            "reasoning" => {
                for part in parts("summary").iter().chain(&parts("content")) {
                    expected.reasoning += text(&part["text"]);
                }
            }
            "function_call" => {
                expected.calls.push((
                    text(&item["name"]).into(),
                    arguments(text(&item["arguments"])),
                ));
                expected.ids.push(text(&item["call_id"]).into());
            }
            _ => {}
        }
    }
    if !expected.calls.is_empty() {
        expected.finish = "tool_calls".into();
    }
    if response["incomplete_details"]["reason"] == "max_output_tokens" {
        expected.finish = "length".into();
    }
    expected.usage = counts(
        &response["usage"],
        [
            "/input_tokens",
            "/output_tokens",
            "/total_tokens",
            "/input_tokens_details/cached_tokens",
            "/output_tokens_details/reasoning_tokens",
        ],
    );
    expected
}

fn messages(frames: &[Value]) -> Expected {
    let mut blocks: BTreeMap<u64, (Value, String)> = BTreeMap::new();
    let mut usage = serde_json::Map::new();
    let mut expected = Expected::default();
    let mut message_id = Value::Null;
    for frame in frames {
        let index = frame["index"].as_u64().unwrap_or(0);
        match text(&frame["type"]) {
            "message_start" if frame["message"]["id"] != message_id => {
                message_id = frame["message"]["id"].clone();
                blocks.clear();
                usage.clone_from(frame["message"]["usage"].as_object().unwrap());
            }
            "content_block_start" => {
                blocks.insert(index, (frame["content_block"].clone(), String::new()));
            }
            "content_block_delta" => {
                let delta = &frame["delta"];
                let more = ["text", "thinking", "partial_json"]
                    .iter()
                    .map(|key| text(&delta[key]))
                    .collect::<String>();
                blocks.get_mut(&index).unwrap().1 += &more;
            }
            "message_delta" => {
                expected.finish = text(&frame["delta"]["stop_reason"]).into();
                usage.extend(frame["usage"].as_object().unwrap().clone());
            }
            // A complete message.
            "message" => {
                for (index, block) in frame["content"].as_array().unwrap().iter().enumerate() {
                    let whole = match text(&block["type"]) {
                        "tool_use" => block["input"].to_string(),
                        kind => text(&block[kind]).to_owned(),
                    };
                    blocks.insert(index as u64, (block.clone(), whole));
                }
                expected.finish = text(&frame["stop_reason"]).into();
                usage.clone_from(frame["usage"].as_object().unwrap());
            }
            "error" => expected.error = true,
            _ => {}
        }
    }
    for (block, content) in blocks.into_values() {
        match text(&block["type"]) {
            "text" => expected.text += &content,
            "thinking" => expected.reasoning += &content,
            "tool_use" => {
                expected
                    .calls
                    .push((text(&block["name"]).into(), arguments(&content)));
                expected.ids.push(text(&block["id"]).into());
            }
            _ => {}
        }
    }
    let word = match expected.finish.as_str() {
        "end_turn" | "stop_sequence" => "stop",
        "tool_use" => "tool_calls",
        "max_tokens" => "length",
        other => other,
    };
    expected.finish = word.into();
    let count = |key: &str| usage.get(key).and_then(Value::as_u64);
    let read = count("cache_read_input_tokens");
    let written = count("cache_creation_input_tokens");
    let prompt = count("input_tokens").unwrap_or(0) + read.unwrap_or(0) + written.unwrap_or(0);
    let output = count("output_tokens").unwrap_or(0);
    let thinking = usage
        .get("output_tokens_details")
        .and_then(|details| details["thinking_tokens"].as_u64());
    expected.usage = Some([
        Some(prompt),
        Some(output),
        Some(prompt + output),
        read,
        thinking,
    ]);
    expected
}

fn gemini(frames: &[Value]) -> Expected {
    let mut expected = Expected::default();
    for frame in frames {
        expected.error |= !frame["error"].is_null();
        if frame["usageMetadata"]["totalTokenCount"].is_u64() {
            let count = |key: &str| frame["usageMetadata"][key].as_u64();
            let thoughts = count("thoughtsTokenCount");
            expected.usage = Some([
                Some(
                    count("promptTokenCount").unwrap_or(0)
                        + count("toolUsePromptTokenCount").unwrap_or(0),
                ),
                Some(count("candidatesTokenCount").unwrap_or(0) + thoughts.unwrap_or(0)),
                count("totalTokenCount"),
                count("cachedContentTokenCount"),
                thoughts,
            ]);
        }
        let candidate = &frame["candidates"][0];
        for part in candidate["content"]["parts"]
            .as_array()
            .into_iter()
            .flatten()
        {
            if part["thought"] == true {
                expected.reasoning += text(&part["text"]);
                continue;
            }
            expected.text += text(&part["text"]);
            let call = &part["functionCall"];
            if let Some(name) = call["name"].as_str() {
                let whole = if call["args"].is_object() {
                    call["args"].clone()
                } else {
                    arguments("")
                };
                expected.calls.push((name.into(), whole));
                expected.ids.push(format!("call_{}", expected.ids.len()));
            }
            for piece in call["partialArgs"].as_array().into_iter().flatten() {
                // In all recordings, the pieces are strings directly below the root.
                let key = text(&piece["jsonPath"]).strip_prefix("$.").unwrap();
                let place = &mut expected.calls.last_mut().unwrap().1[key];
                *place = Value::from(text(place).to_owned() + text(&piece["stringValue"]));
            }
        }
        if let Some(finish) = candidate["finishReason"].as_str() {
            expected.finish = finish.into();
        }
    }
    let word = match expected.finish.as_str() {
        "STOP" if !expected.calls.is_empty() => "tool_calls",
        "STOP" => "stop",
        "MAX_TOKENS" => "length",
        "SAFETY" => "content_filter",
        other => other,
    };
    expected.finish = word.into();
    expected
}
