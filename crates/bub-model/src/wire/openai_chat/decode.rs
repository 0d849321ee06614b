//! Decoder for responses in the chat-completions format.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::calls::{CallAssembler, CallDelta};
use crate::classify::classify;
use crate::sse::SseEvent;
use crate::wire::format_table::{parse_finish_reason, parse_usage};
use crate::wire::raw::{self, RawObject};
use crate::wire::stream::{Answer, FrameDecoder, unexpected_response_error};
use crate::{FinishReason, ModelError, ModelEvent, Quirks, Result, ToolCallDelta};

/// Decodes a response in the chat-completions format.
#[derive(Default)]
pub(in crate::wire) struct ChatCompletionsDecoder {
    reasoning_fields: Vec<String>,
    replay_reasoning: bool,
    calls: CallAssembler,
    /// Fields of the message that the server expects back.
    state: Map<String, Value>,
    /// Whether any content was received.
    has_content: bool,
    is_done: bool,
}

impl ChatCompletionsDecoder {
    pub(in crate::wire) fn new(quirks: &Quirks) -> Self {
        Self {
            reasoning_fields: quirks.reasoning_fields.clone(),
            replay_reasoning: quirks.replay_reasoning,
            ..Self::default()
        }
    }

    /// Decodes a chunk or a complete answer. `content_keys` are the possible keys of its content, in order of
    /// preference.
    fn decode_chunk(
        &mut self,
        chunk: &RawObject<'_>,
        content_keys: [&str; 2],
        answer: &mut Answer,
    ) -> Result<()> {
        if let Some(error) = find_error(chunk) {
            return Err(error);
        }
        let choices = chunk.objects("choices");
        let choice = choices
            .iter()
            .find(|choice| choice.u64("index").unwrap_or(0) == 0);
        let nested_usage = || chunk.object("x_groq")?.value("usage");
        let usage = chunk
            .value("usage")
            .or_else(nested_usage)
            .or_else(|| choice?.value("usage"));
        if let Some(usage) = usage.filter(Value::is_object) {
            answer.usage = Some(parse_usage(super::NAME, usage));
        }
        let Some(choice) = choice else { return Ok(()) };
        if let Some(error) = find_error(choice) {
            return Err(error);
        }
        let before = answer.events.len();
        if let Some(delta) = content_keys.iter().find_map(|key| choice.object(key)) {
            self.decode_delta(&delta, answer)?;
        }
        self.has_content |= answer.events.len() > before;
        let Some(name) = choice.text("finish_reason") else {
            return Ok(());
        };
        if name == "error" {
            let message = b"the server ended the answer with an error";
            return Err(classify(None, None, message));
        }
        // Some servers send an additional `stop` at the end; keep the earlier reason.
        let reason = parse_finish_reason(super::NAME, &name);
        if answer.finish.is_none() || reason != FinishReason::Stop {
            answer.finish = Some(reason);
        }
        Ok(())
    }

    fn decode_delta(&mut self, delta: &RawObject<'_>, answer: &mut Answer) -> Result<()> {
        self.decode_reasoning(delta, answer);
        decode_content(delta, answer);
        if let Some(refusal) = delta.text("refusal") {
            answer.is_refusal = true;
            answer.push_text(refusal);
        }
        for call in delta.objects("tool_calls") {
            let id = call.text("id").unwrap_or_default();
            // Some servers omit the `function` wrapper.
            let function = call.object("function");
            let function = function.as_ref().unwrap_or(&call);
            self.push_call_delta(call.u64("index"), &id, function, answer)?;
        }
        // Some servers add an empty call to each message.
        let function = delta.object("function_call");
        let has_content =
            |call: &RawObject<'_>| call.text("name").is_some() || call.text("arguments").is_some();
        if let Some(function) = function.filter(has_content) {
            self.push_call_delta(Some(0), "", &function, answer)?;
        }
        Ok(())
    }

    fn decode_reasoning(&mut self, delta: &RawObject<'_>, answer: &mut Answer) {
        let details = delta.objects("reasoning_details");
        let field_text = self
            .reasoning_fields
            .iter()
            .find_map(|field| Some((field, delta.text(field)?)));
        if let Some((field, text)) = field_text {
            if self.replay_reasoning && details.is_empty() {
                append_text(&mut self.state, field, &text);
            }
            answer.push_reasoning(Some(text));
        } else {
            for detail in &details {
                answer.push_reasoning(detail.text("text").or(detail.text("summary")));
            }
        }
        for detail in details {
            merge_reasoning_detail(&mut self.state, &detail);
        }
    }

    fn push_call_delta(
        &mut self,
        index: Option<u64>,
        id: &str,
        function: &RawObject<'_>,
        answer: &mut Answer,
    ) -> Result<()> {
        let name = function.text("name").unwrap_or_default();
        // Some servers send the arguments as an object instead of a string.
        let arguments = function
            .raw("arguments")
            .map(|raw| raw::parse_str(raw).unwrap_or(Cow::Borrowed(raw)));
        let arguments = arguments.unwrap_or_default();
        let index = self.calls.assign_delta(CallDelta {
            index,
            id,
            name: &name,
            arguments: &arguments,
        })?;
        answer.events.push(ModelEvent::ToolCall(ToolCallDelta {
            index,
            id: Some(id.to_owned()).filter(|id| !id.is_empty()),
            name: Some(name.into_owned()).filter(|name| !name.is_empty()),
            arguments: arguments.into_owned(),
        }));
        Ok(())
    }
}

impl FrameDecoder for ChatCompletionsDecoder {
    fn decode_frame(&mut self, event: &SseEvent<'_>, answer: &mut Answer) -> Result<()> {
        let chunk = RawObject::from_event(event)?;
        if event.event == b"error" && chunk.raw("error").is_none() {
            return Err(classify(None, None, event.data));
        }
        self.decode_chunk(&chunk, ["delta", "message"], answer)
    }

    /// Finishes an answer even without a finish reason, unless the answer has no content.
    fn handle_end_marker(&mut self, answer: &mut Answer) {
        self.is_done = true;
        if self.has_content {
            answer.finish.get_or_insert(FinishReason::Stop);
        }
    }

    fn decode_body(&mut self, body: &str, answer: &mut Answer) -> Result<()> {
        let response = RawObject::parse(body)?;
        if response.raw("choices").is_none() {
            return Err(find_error(&response)
                .unwrap_or_else(|| unexpected_response_error("it has no `choices`")));
        }
        // Try `message` first, because some servers add an empty `delta` to a complete message.
        self.decode_chunk(&response, ["message", "delta"], answer)?;
        // A complete answer counts as finished, because some servers never send a finish reason.
        self.handle_end_marker(answer);
        Ok(())
    }

    fn close(&mut self, _answer: &mut Answer) -> Option<Value> {
        let state = std::mem::take(&mut self.state);
        (!state.is_empty()).then(|| json!({super::NAME: state}))
    }

    fn incomplete_error(&self) -> ModelError {
        if self.is_done {
            return ModelError::empty();
        }
        ModelError::truncated("incomplete answer: the stream ended without a finish reason")
    }
}

/// Decodes content: a string, or a list of parts, some of which may be reasoning.
fn decode_content(delta: &RawObject<'_>, answer: &mut Answer) {
    let Some(raw) = delta.raw("content") else {
        let audio = delta.object("audio").unwrap_or_default();
        answer.push_text(audio.str("transcript").unwrap_or_default());
        return;
    };
    if let Some(text) = raw::parse_str(raw) {
        answer.push_text(text);
        return;
    }
    for part in raw::parse_objects(raw) {
        for piece in part.objects("thinking") {
            answer.push_reasoning(piece.str("text"));
        }
        answer.push_reasoning(part.str("thinking"));
        answer.push_text(part.str("text").unwrap_or_default());
    }
}

/// Adds a reasoning detail from a delta to the details received so far. Extends the last detail if both have the same
/// type and index, because the server expects complete details back.
fn merge_reasoning_detail(state: &mut Map<String, Value>, detail: &RawObject<'_>) {
    let Value::Object(mut detail) = detail.to_value() else {
        return;
    };
    let Value::Array(details) = state
        .entry("reasoning_details")
        .or_insert_with(|| json!([]))
    else {
        return;
    };
    let last = details.last_mut().and_then(Value::as_object_mut);
    let Some(last) = last.filter(|last| continues_reasoning_detail(last, &detail)) else {
        details.push(Value::Object(detail));
        return;
    };
    for key in ["text", "summary", "data"] {
        if let Some(Value::String(more)) = detail.shift_remove(key) {
            append_text(last, key, &more);
        }
    }
    last.extend(detail.into_iter().filter(|(_, value)| !value.is_null()));
}

fn continues_reasoning_detail(detail: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    detail.get("type") == other.get("type")
        && detail.get("index") == other.get("index")
        && detail.get("index").is_some()
}

fn append_text(fields: &mut Map<String, Value>, key: &str, more: &str) {
    match fields.get_mut(key) {
        Some(Value::String(text)) => text.push_str(more),
        _ => {
            fields.insert(key.to_owned(), more.into());
        }
    }
}

/// Returns the error in an object, if it contains one in any of the forms that servers use.
fn find_error(object: &RawObject<'_>) -> Option<ModelError> {
    let is_nested = object
        .raw("error")
        .is_some_and(|raw| !matches!(raw, "false" | "\"\"" | "{}"));
    let has = |key: &str| object.raw(key).is_some();
    let message = object.raw("message");
    let is_content =
        has("choices") || has("delta") || message.is_some_and(|raw| raw.starts_with('{'));
    let is_bare = !is_content && (message.is_some() || has("detail"));
    let base_resp = object.object("base_resp").unwrap_or_default();
    let body = match base_resp.u64("status_code") {
        Some(code) if code != 0 => {
            json!({"error": {"code": code.to_string(), "message": base_resp.str("status_msg")}})
        }
        _ if is_nested || is_bare => object.to_value(),
        _ => return None,
    };
    Some(classify(None, None, body.to_string().as_bytes()))
}
