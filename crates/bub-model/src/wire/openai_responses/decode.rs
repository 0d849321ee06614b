//! Decoder for responses in the Responses format.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::items::ResponseItems;
use crate::classify::classify;
use crate::sse::SseEvent;
use crate::wire::raw::{RawObject, as_count};
use crate::wire::replay::BlockOrder;
use crate::wire::stream::{DecodeStatus, FrameDecoder, unexpected_response_error};
use crate::wire::{WireFormat, error_status};
use crate::{FinishReason, ModelError, ModelEvent, Quirks, ToolCallDelta, Usage};

/// Decodes a response in the Responses format.
#[derive(Default)]
pub(in crate::wire) struct ResponsesDecoder {
    replay_reasoning: bool,
    items: ResponseItems,
    order: BlockOrder,
    /// Bytes of text that are not recorded in the block order yet.
    unrecorded_text: usize,
    usage: Option<Usage>,
    finish: Option<FinishReason>,
    is_refusal: bool,
}

impl ResponsesDecoder {
    pub(in crate::wire) fn new(quirks: &Quirks) -> Self {
        Self {
            replay_reasoning: quirks.replay_reasoning,
            ..Self::default()
        }
    }

    fn push_text(&mut self, frame: &RawObject<'_>, out: &mut Vec<ModelEvent>) {
        self.mark_streamed(frame);
        if let Some(delta) = frame.text("delta") {
            self.unrecorded_text += delta.len();
            out.push(ModelEvent::Text(delta.into_owned()));
        }
    }

    fn push_reasoning(&mut self, frame: &RawObject<'_>, out: &mut Vec<ModelEvent>) {
        self.mark_streamed(frame);
        out.extend(
            frame
                .text("delta")
                .map(|delta| ModelEvent::Reasoning(delta.into_owned())),
        );
    }

    /// Emits a piece of the arguments in `delta`. With `complete_key`, emits the complete arguments in that field, unless
    /// pieces were received before.
    fn push_arguments(
        &mut self,
        frame: &RawObject<'_>,
        complete_key: Option<&str>,
        out: &mut Vec<ModelEvent>,
    ) {
        let arguments = match complete_key {
            Some(key) => frame.text(key),
            None => frame.text("delta"),
        };
        let (index, id) = item_key(frame);
        let call = self.items.with_item(index, &id, |item| {
            let is_needed = complete_key.is_none() || !item.streamed;
            item.streamed |= arguments.is_some();
            item.call.filter(|_| is_needed)
        });
        if let (Some(index), Some(arguments)) = (call, arguments) {
            let arguments = arguments.into_owned();
            out.push(ModelEvent::ToolCall(ToolCallDelta {
                index,
                arguments,
                ..ToolCallDelta::default()
            }));
        }
    }

    fn mark_streamed(&mut self, frame: &RawObject<'_>) {
        let (index, id) = item_key(frame);
        self.items
            .with_item(index, &id, |item| item.streamed = true);
    }

    fn handle_item_added(
        &mut self,
        index: Option<u64>,
        item: &RawObject<'_>,
        out: &mut Vec<ModelEvent>,
    ) {
        if is_tool_call(item) {
            self.start_call(index, item, out);
        }
    }

    fn start_call(&mut self, index: Option<u64>, item: &RawObject<'_>, out: &mut Vec<ModelEvent>) {
        let item_id = item.str("id").unwrap_or_default();
        if self
            .items
            .with_item(index, &item_id, |state| state.call)
            .is_some()
        {
            return;
        }
        let call = self.items.allocate_call_index();
        self.items
            .with_item(index, &item_id, |state| state.call = Some(call));
        self.flush_text(None);
        self.order.record_call(call, None);
        let id = item.text("call_id").or_else(|| item.text("id"));
        out.push(ModelEvent::ToolCall(ToolCallDelta {
            index: call,
            id: id.map(Cow::into_owned),
            name: item.text("name").map(Cow::into_owned),
            arguments: String::new(),
        }));
    }

    /// Handles a complete item: emits the content that was not received in deltas.
    fn handle_item_done(
        &mut self,
        index: Option<u64>,
        item: &RawObject<'_>,
        out: &mut Vec<ModelEvent>,
    ) {
        let id = item.str("id").unwrap_or_default();
        let kind = item.str("type").unwrap_or_default();
        if is_tool_call(item) {
            self.start_call(index, item, out);
        }
        let (call, streamed) = self.items.with_item(index, &id, |state| {
            (state.call, std::mem::replace(&mut state.streamed, true))
        });
        match (&*kind, call) {
            (_, Some(call)) if !streamed => {
                let arguments = item.text("arguments").or_else(|| item.text("input"));
                let arguments = arguments.unwrap_or_default().into_owned();
                out.push(ModelEvent::ToolCall(ToolCallDelta {
                    index: call,
                    arguments,
                    ..ToolCallDelta::default()
                }));
            }
            ("message", _) => self.handle_message_done(item, streamed, out),
            ("reasoning", _) => self.handle_reasoning_done(item, streamed, out),
            _ => {}
        }
    }

    fn handle_message_done(
        &mut self,
        item: &RawObject<'_>,
        streamed: bool,
        out: &mut Vec<ModelEvent>,
    ) {
        for part in item.objects("content").iter().filter(|_| !streamed) {
            let refusal = part.text("refusal");
            self.is_refusal |= refusal.is_some();
            if let Some(text) = part.text("text").or(refusal) {
                self.unrecorded_text += text.len();
                out.push(ModelEvent::Text(text.into_owned()));
            }
        }
        // Newer models distinguish commentary from the answer with a `phase` and expect it back.
        self.flush_text(item.text("phase").map(|phase| json!({"phase": phase})));
    }

    fn handle_reasoning_done(
        &mut self,
        item: &RawObject<'_>,
        streamed: bool,
        out: &mut Vec<ModelEvent>,
    ) {
        for part in ["summary", "content"]
            .iter()
            .flat_map(|key| item.objects(key))
            .filter(|_| !streamed)
        {
            out.extend(
                part.text("text")
                    .map(|text| ModelEvent::Reasoning(text.into_owned())),
            );
        }
        // The server does not store items, so an item without encrypted content is useless to it.
        if item.text("encrypted_content").is_some() || self.replay_reasoning {
            self.flush_text(None);
            let mut replayed = item.to_value();
            if let Some(fields) = replayed.as_object_mut() {
                fields.shift_remove("status");
            }
            self.order.record_block(replayed);
        }
    }

    fn flush_text(&mut self, mark: Option<Value>) {
        if self.unrecorded_text > 0 {
            self.order
                .record_text(std::mem::take(&mut self.unrecorded_text), mark);
        }
    }

    /// Handles the response object, which ends a stream or is the complete answer.
    fn finish_response(
        &mut self,
        response: &RawObject<'_>,
        out: &mut Vec<ModelEvent>,
    ) -> Result<(), ModelError> {
        if self.items.is_empty() {
            for (index, item) in (0..).zip(response.objects("output")) {
                self.handle_item_done(Some(index), &item, out);
            }
        }
        self.usage = response
            .value("usage")
            .filter(Value::is_object)
            .map(parse_usage)
            .or(self.usage.take());
        let status = response.str("status").unwrap_or_default();
        match &*status {
            // A compatible server sends `complete`.
            "completed" | "complete" => self.finish = Some(FinishReason::Stop),
            "incomplete" => {
                let reason = response
                    .object("incomplete_details")
                    .and_then(|details| details.text("reason").map(Cow::into_owned));
                self.finish = Some(parse_incomplete_reason(
                    reason.as_deref().unwrap_or("incomplete"),
                ));
            }
            "failed" | "cancelled" => return Err(response_error(response, &status)),
            _ if response.raw("error").is_some() => return Err(response_error(response, &status)),
            _ => {}
        }
        Ok(())
    }
}

impl FrameDecoder for ResponsesDecoder {
    fn decode_frame(
        &mut self,
        event: &SseEvent<'_>,
        out: &mut Vec<ModelEvent>,
    ) -> Result<DecodeStatus, ModelError> {
        let frame = RawObject::from_event(event)?;
        let index = frame.u64("output_index");
        let item = || frame.object("item").unwrap_or_default();
        match frame.str("type").as_deref().unwrap_or_default() {
            "response.output_text.delta" => self.push_text(&frame, out),
            "response.refusal.delta" => {
                self.is_refusal = true;
                self.push_text(&frame, out);
            }
            "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" => {
                self.push_reasoning(&frame, out);
            }
            "response.output_item.added" => self.handle_item_added(index, &item(), out),
            "response.output_item.done" => self.handle_item_done(index, &item(), out),
            "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
                self.push_arguments(&frame, None, out);
            }
            "response.function_call_arguments.done" => {
                self.push_arguments(&frame, Some("arguments"), out);
            }
            "response.custom_tool_call_input.done" => {
                self.push_arguments(&frame, Some("input"), out);
            }
            "response.completed" | "response.incomplete" | "response.failed" | "response.done" => {
                self.finish_response(&frame.object("response").unwrap_or_default(), out)?;
                return Ok(DecodeStatus::Done);
            }
            kind if kind == "error" || event.event == b"error" || frame.raw("error").is_some() => {
                return Err(response_error(&frame, "error"));
            }
            _ => {}
        }
        Ok(DecodeStatus::More)
    }

    fn decode_body(&mut self, body: &str, out: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        let response = RawObject::parse(body)?;
        if response.raw("output").is_none() {
            return Err(match response.raw("error").or(response.raw("code")) {
                Some(_) => response_error(&response, "error"),
                None => unexpected_response_error("it has no `output`"),
            });
        }
        self.finish_response(&response, out)?;
        // Compatible servers omit the status of complete answers.
        if response.raw("status").is_none() && self.finish.is_none() {
            self.finish = Some(FinishReason::Stop);
        }
        Ok(())
    }

    fn has_finish_reason(&self) -> bool {
        self.finish.is_some()
    }

    fn finish(&mut self, out: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        let Some(finish) = self.finish.take() else {
            return Err(ModelError::truncated(
                "incomplete answer: the connection ended before the answer was complete; send the message again",
            ));
        };
        self.flush_text(None);
        let finish = if self.is_refusal && finish == FinishReason::Stop {
            FinishReason::Refusal
        } else {
            finish
        };
        out.extend(self.usage.take().map(ModelEvent::Usage));
        out.extend(
            std::mem::take(&mut self.order)
                .into_state(super::NAME)
                .map(ModelEvent::ProviderState),
        );
        out.push(ModelEvent::Finish(finish));
        Ok(())
    }
}

fn is_tool_call(item: &RawObject<'_>) -> bool {
    matches!(
        item.str("type").as_deref(),
        Some("function_call" | "custom_tool_call")
    )
}

/// Returns the index and the id of the item that an event belongs to.
fn item_key<'a>(frame: &RawObject<'a>) -> (Option<u64>, Cow<'a, str>) {
    let id = frame.text("item_id").or_else(|| frame.text("call_id"));
    (frame.u64("output_index"), id.unwrap_or_default())
}

fn parse_incomplete_reason(name: &str) -> FinishReason {
    match name {
        "max_output_tokens" | "max_tokens" => FinishReason::Length,
        "content_filter" => FinishReason::ContentFilter,
        other => FinishReason::Other(other.to_owned()),
    }
}

fn response_error(object: &RawObject<'_>, status_text: &str) -> ModelError {
    let error = object.object("error");
    let status = error
        .as_ref()
        .and_then(error_status)
        .or_else(|| error_status(object));
    let body = match object.value("error") {
        Some(error) => json!({"error": error}),
        None if object.raw("message").is_some() => object.to_value(),
        None => {
            json!({"error": {"message": format!("the response ended with the status `{status_text}`")}})
        }
    };
    classify(
        status,
        None,
        body.to_string().as_bytes(),
        WireFormat::Responses,
    )
}

fn parse_usage(raw: Value) -> Usage {
    let count = |path: &str| raw.pointer(path).and_then(as_count);
    let prompt = count("/input_tokens").unwrap_or(0);
    let completion = count("/output_tokens").unwrap_or(0);
    Usage {
        prompt,
        completion,
        total: count("/total_tokens").unwrap_or(prompt + completion),
        cached: count("/input_tokens_details/cached_tokens"),
        cache_write: count("/input_tokens_details/cache_write_tokens"),
        reasoning: count("/output_tokens_details/reasoning_tokens"),
        raw,
    }
}
