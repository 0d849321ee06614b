//! Decoder for responses in the chat-completions format.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::calls::{CallAssembler, CallDelta};
use crate::classify::classify;
use crate::sse::SseEvent;
use crate::wire::raw::{self, RawObject};
use crate::wire::stream::{DecodeStatus, FrameDecoder, unexpected_response_error};
use crate::wire::{WireFormat, error_status};
use crate::{FinishReason, ModelError, ModelEvent, Quirks, ToolCallDelta, Usage};

/// Decodes a response in the chat-completions format.
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts about the stream, not a state"
)]
pub(in crate::wire) struct ChatCompletionsDecoder {
    reasoning_fields: Vec<String>,
    replay_reasoning: bool,
    calls: CallAssembler,
    /// Fields of the message that the server expects back.
    state: Map<String, Value>,
    usage: Option<Usage>,
    finish: Option<FinishReason>,
    is_refusal: bool,
    /// Whether any content was received.
    has_content_event: bool,
    is_done: bool,
}

impl ChatCompletionsDecoder {
    pub(in crate::wire) fn new(quirks: &Quirks) -> Self {
        Self {
            reasoning_fields: quirks.reasoning_fields.clone(),
            replay_reasoning: quirks.replay_reasoning,
            calls: CallAssembler::default(),
            state: Map::new(),
            usage: None,
            finish: None,
            is_refusal: false,
            has_content_event: false,
            is_done: false,
        }
    }

    /// Decodes a chunk or a complete answer. `content_keys` are the possible keys of its content.
    fn decode_chunk(
        &mut self,
        chunk: &RawObject<'_>,
        content_keys: [&str; 2],
        out: &mut Vec<ModelEvent>,
    ) -> Result<(), ModelError> {
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
            self.usage = Some(parse_usage(usage));
        }
        let Some(choice) = choice else { return Ok(()) };
        if let Some(error) = find_error(choice) {
            return Err(error);
        }
        let before = out.len();
        if let Some(delta) = content_keys.iter().find_map(|key| choice.object(key)) {
            self.decode_delta(&delta, out)?;
        }
        self.has_content_event |= out.len() > before;
        match choice.text("finish_reason") {
            Some(name) if name == "error" => Err(classify(
                None,
                None,
                b"the server ended the answer with an error",
                WireFormat::ChatCompletions,
            )),
            Some(name) => {
                // Some servers send an additional `stop` at the end; keep the earlier reason.
                let reason = parse_finish_reason(&name);
                if self.finish.is_none() || reason != FinishReason::Stop {
                    self.finish = Some(reason);
                }
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn decode_delta(
        &mut self,
        delta: &RawObject<'_>,
        out: &mut Vec<ModelEvent>,
    ) -> Result<(), ModelError> {
        self.decode_reasoning(delta, out);
        decode_content(delta, out);
        if let Some(refusal) = delta.text("refusal") {
            self.is_refusal = true;
            out.push(ModelEvent::Text(refusal.into_owned()));
        }
        for call in delta.objects("tool_calls") {
            self.decode_call(&call, out)?;
        }
        if let Some(function) = delta.object("function_call") {
            self.push_call_delta(Some(0), "", &function, out)?;
        }
        Ok(())
    }

    fn decode_reasoning(&mut self, delta: &RawObject<'_>, out: &mut Vec<ModelEvent>) {
        let details = delta.objects("reasoning_details");
        let field_text = self
            .reasoning_fields
            .iter()
            .find_map(|field| Some((field, delta.text(field)?)));
        if let Some((field, text)) = field_text {
            if self.replay_reasoning && details.is_empty() {
                append_text(&mut self.state, field, &text);
            }
            out.push(ModelEvent::Reasoning(text.into_owned()));
        } else {
            let texts = details
                .iter()
                .filter_map(|detail| detail.text("text").or(detail.text("summary")));
            out.extend(texts.map(|text| ModelEvent::Reasoning(text.into_owned())));
        }
        for detail in details {
            merge_reasoning_detail(&mut self.state, &detail);
        }
    }

    fn decode_call(
        &mut self,
        call: &RawObject<'_>,
        out: &mut Vec<ModelEvent>,
    ) -> Result<(), ModelError> {
        let id = call.text("id").unwrap_or_default();
        // Some servers omit the `function` wrapper.
        let function = call.object("function");
        self.push_call_delta(
            call.u64("index"),
            &id,
            function.as_ref().unwrap_or(call),
            out,
        )
    }

    fn push_call_delta(
        &mut self,
        index: Option<u64>,
        id: &str,
        function: &RawObject<'_>,
        out: &mut Vec<ModelEvent>,
    ) -> Result<(), ModelError> {
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
        out.push(ModelEvent::ToolCall(ToolCallDelta {
            index,
            id: Some(id.to_owned()).filter(|id| !id.is_empty()),
            name: Some(name.into_owned()).filter(|name| !name.is_empty()),
            arguments: arguments.into_owned(),
        }));
        Ok(())
    }
}

impl FrameDecoder for ChatCompletionsDecoder {
    fn decode_frame(
        &mut self,
        event: &SseEvent<'_>,
        out: &mut Vec<ModelEvent>,
    ) -> Result<DecodeStatus, ModelError> {
        let chunk = RawObject::from_event(event)?;
        if event.event == b"error" && chunk.raw("error").is_none() {
            return Err(classify(
                error_status(&chunk),
                None,
                event.data,
                WireFormat::ChatCompletions,
            ));
        }
        self.decode_chunk(&chunk, ["delta", "message"], out)?;
        Ok(DecodeStatus::More)
    }

    fn handle_end_marker(&mut self) {
        self.is_done = true;
    }

    fn decode_body(&mut self, body: &str, out: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        let answer = RawObject::parse(body)?;
        if answer.raw("choices").is_none() {
            return Err(find_error(&answer)
                .unwrap_or_else(|| unexpected_response_error("it has no `choices`")));
        }
        // `message` first, because some servers add an empty `delta` to a complete message.
        self.decode_chunk(&answer, ["message", "delta"], out)?;
        // A complete answer counts as finished, because some servers never send a finish reason.
        self.is_done = true;
        Ok(())
    }

    fn has_finish_reason(&self) -> bool {
        self.finish.is_some()
    }

    fn finish(&mut self, out: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        // The end marker finishes an answer even without a finish reason, unless the answer has no content.
        let implied = (self.is_done && self.has_content_event).then_some(FinishReason::Stop);
        let Some(finish) = self.finish.take().or(implied) else {
            let truncated_error = || {
                ModelError::truncated("incomplete answer: the stream ended without a finish reason")
            };
            return Err(if self.is_done {
                ModelError::empty()
            } else {
                truncated_error()
            });
        };
        let finish = if self.is_refusal && finish == FinishReason::Stop {
            FinishReason::Refusal
        } else {
            finish
        };
        out.extend(self.usage.take().map(ModelEvent::Usage));
        if !self.state.is_empty() {
            let state = Value::Object(std::mem::take(&mut self.state));
            out.push(ModelEvent::ProviderState(json!({super::NAME: state})));
        }
        out.push(ModelEvent::Finish(finish));
        Ok(())
    }
}

/// Decodes content: a string, or a list of parts, some of which may be reasoning.
fn decode_content(delta: &RawObject<'_>, out: &mut Vec<ModelEvent>) {
    let Some(raw) = delta.raw("content") else {
        let transcript = delta
            .object("audio")
            .and_then(|audio| audio.text("transcript").map(Cow::into_owned));
        out.extend(transcript.map(ModelEvent::Text));
        return;
    };
    if let Some(text) = raw::parse_str(raw) {
        if !text.is_empty() {
            out.push(ModelEvent::Text(text.into_owned()));
        }
        return;
    }
    for part in raw::parse_objects(raw) {
        let thinking = part.text("thinking");
        let pieces = part.objects("thinking");
        let thoughts = pieces
            .iter()
            .filter_map(|piece| piece.text("text"))
            .chain(thinking);
        out.extend(thoughts.map(|text| ModelEvent::Reasoning(text.into_owned())));
        out.extend(
            part.text("text")
                .map(|text| ModelEvent::Text(text.into_owned())),
        );
    }
}

/// Joins the pieces of a reasoning detail, which arrive with every delta. The server expects the complete detail back.
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
    let Some(last) = last.filter(|last| is_same_detail(last, &detail)) else {
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

fn is_same_detail(detail: &Map<String, Value>, other: &Map<String, Value>) -> bool {
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
    let has_content = object.raw("choices").is_some() || object.raw("delta").is_some();
    let is_content = has_content
        || object
            .raw("message")
            .is_some_and(|raw| raw.starts_with('{'));
    let is_bare = !is_content
        && ["message", "detail"]
            .iter()
            .any(|key| object.raw(key).is_some());
    let base_resp = object.object("base_resp");
    let failed = base_resp
        .as_ref()
        .and_then(|base_resp| base_resp.u64("status_code"))
        .filter(|code| *code != 0);
    let body = match (failed, base_resp) {
        (Some(code), Some(base_resp)) => {
            json!({"error": {"code": code.to_string(), "message": base_resp.str("status_msg")}})
        }
        _ if is_nested || is_bare => object.to_value(),
        _ => return None,
    };
    let status = object
        .object("error")
        .as_ref()
        .and_then(error_status)
        .or_else(|| error_status(object));
    Some(classify(
        status,
        None,
        body.to_string().as_bytes(),
        WireFormat::ChatCompletions,
    ))
}

fn parse_finish_reason(name: &str) -> FinishReason {
    match name.to_ascii_lowercase().as_str() {
        "stop" | "end_turn" | "eos" | "eos_token" | "stop_sequence" | "complete" | "completed" => {
            FinishReason::Stop
        }
        "tool_calls" | "function_call" | "tool_use" => FinishReason::ToolCalls,
        "length" | "max_tokens" | "model_length" | "max_output_tokens" => FinishReason::Length,
        "content_filter" | "content-filter" | "sensitive" | "safety" => FinishReason::ContentFilter,
        "refusal" => FinishReason::Refusal,
        _ => FinishReason::Other(name.to_owned()),
    }
}

fn parse_usage(raw: Value) -> Usage {
    let count = |path: &str| raw.pointer(path).and_then(raw::as_count);
    let prompt = count("/prompt_tokens").unwrap_or(0);
    let completion = count("/completion_tokens").unwrap_or(0);
    Usage {
        prompt,
        completion,
        total: count("/total_tokens").unwrap_or(prompt + completion),
        cached: count("/prompt_tokens_details/cached_tokens")
            .or_else(|| count("/prompt_cache_hit_tokens"))
            .or_else(|| count("/cached_tokens")),
        cache_write: count("/prompt_tokens_details/cache_write_tokens")
            .or_else(|| count("/prompt_tokens_details/cache_creation_input_tokens")),
        reasoning: count("/completion_tokens_details/reasoning_tokens")
            .or_else(|| count("/reasoning_tokens")),
        raw,
    }
}
