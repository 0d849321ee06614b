//! Decoder for responses in the Responses format.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::items::{ResponseItem, ResponseItems};
use crate::classify::classify;
use crate::sse::SseEvent;
use crate::wire::format_table::{parse_finish_reason, parse_usage};
use crate::wire::raw::RawObject;
use crate::wire::replay::BlockOrder;
use crate::wire::stream::{Answer, FrameDecoder, unexpected_response_error};
use crate::{FinishReason, ModelError, Quirks, Result};

/// Decodes a response in the Responses format.
#[derive(Default)]
pub(in crate::wire) struct ResponsesDecoder {
    replay_reasoning: bool,
    items: ResponseItems,
    order: BlockOrder,
    /// Number of bytes of text that are not recorded in `order` yet.
    unrecorded_text: usize,
}

impl ResponsesDecoder {
    pub(in crate::wire) fn new(quirks: &Quirks) -> Self {
        Self {
            replay_reasoning: quirks.replay_reasoning,
            ..Self::default()
        }
    }

    fn push_text(&mut self, text: Option<Cow<'_, str>>, answer: &mut Answer) {
        let text = text.unwrap_or_default();
        self.unrecorded_text += text.len();
        answer.push_text(text);
    }

    /// Emits the arguments of a tool call in a frame. If they `are_complete`, they are skipped if parts of them were
    /// received before.
    fn push_arguments(
        &mut self,
        frame: &RawObject<'_>,
        arguments: Option<Cow<'_, str>>,
        are_complete: bool,
        answer: &mut Answer,
    ) {
        let (index, id) = item_key(frame);
        let call = self.items.with_item(index, &id, |item| {
            let is_needed = !are_complete || !item.streamed;
            item.streamed |= arguments.is_some();
            item.call.filter(|_| is_needed)
        });
        if let (Some(index), Some(arguments)) = (call, arguments) {
            answer.push_arguments(index, arguments.into_owned());
        }
    }

    fn mark_streamed(&mut self, frame: &RawObject<'_>) {
        let (index, id) = item_key(frame);
        self.items
            .with_item(index, &id, |item| item.streamed = true);
    }

    /// Handles the start of an item. Only calls of functions matter. Servers report the tools that they run themselves
    /// as other items, such as `custom_tool_call`. bub declares only functions, so those calls are never for bub.
    fn start_item(&mut self, index: Option<u64>, item: &RawObject<'_>, answer: &mut Answer) {
        let is_call = item.str("type").as_deref() == Some("function_call");
        let item_id = item.str("id").unwrap_or_default();
        let is_known = |state: &mut ResponseItem| state.call.is_some();
        if !is_call || self.items.with_item(index, &item_id, is_known) {
            return;
        }
        let id = item.text("call_id").or_else(|| item.text("id"));
        let call = answer.start_call(id, item.text("name"), String::new());
        self.items
            .with_item(index, &item_id, |state| state.call = Some(call));
        self.flush_text(None);
        self.order.record_call(call, None);
    }

    /// Handles a complete item: emits the content that was not received in deltas.
    fn finish_item(&mut self, index: Option<u64>, item: &RawObject<'_>, answer: &mut Answer) {
        let id = item.str("id").unwrap_or_default();
        let kind = item.str("type").unwrap_or_default();
        self.start_item(index, item, answer);
        let (call, streamed) = self.items.with_item(index, &id, |state| {
            (state.call, std::mem::replace(&mut state.streamed, true))
        });
        match (&*kind, call) {
            (_, Some(call)) if !streamed => {
                let arguments = item.text("arguments").unwrap_or_default();
                answer.push_arguments(call, arguments.into_owned());
            }
            ("message", _) => self.finish_message(item, streamed, answer),
            ("reasoning", _) => self.finish_reasoning(item, streamed, answer),
            _ => {}
        }
    }

    fn finish_message(&mut self, item: &RawObject<'_>, streamed: bool, answer: &mut Answer) {
        for part in item.objects("content").iter().filter(|_| !streamed) {
            let refusal = part.text("refusal");
            answer.is_refusal |= refusal.is_some();
            self.push_text(part.text("text").or(refusal), answer);
        }
        // Newer models distinguish commentary from the answer with a `phase` and expect it back.
        self.flush_text(item.text("phase").map(|phase| json!({"phase": phase})));
    }

    fn finish_reasoning(&mut self, item: &RawObject<'_>, streamed: bool, answer: &mut Answer) {
        let parts = ["summary", "content"].map(|key| item.objects(key));
        for part in parts.iter().flatten().filter(|_| !streamed) {
            answer.push_reasoning(part.text("text"));
        }
        // The server does not store items, so a reasoning item without encrypted content is useless to it.
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
    fn finish_response(&mut self, response: &RawObject<'_>, answer: &mut Answer) -> Result<()> {
        if self.items.is_empty() {
            for (index, item) in (0..).zip(response.objects("output")) {
                self.finish_item(Some(index), &item, answer);
            }
        }
        if let Some(usage) = response.value("usage").filter(Value::is_object) {
            answer.usage = Some(parse_usage(super::NAME, usage));
        }
        let status = response.str("status").unwrap_or_default();
        match &*status {
            // Some compatible servers send `complete`.
            "completed" | "complete" => answer.finish = Some(FinishReason::Stop),
            "incomplete" => {
                let details = response.object("incomplete_details").unwrap_or_default();
                let reason = details.text("reason").unwrap_or("incomplete".into());
                answer.finish = Some(parse_finish_reason(super::NAME, &reason));
            }
            "failed" | "cancelled" => return Err(failed_response_error(response, &status)),
            _ if response.raw("error").is_some() => {
                return Err(failed_response_error(response, &status));
            }
            _ => {}
        }
        Ok(())
    }
}

impl FrameDecoder for ResponsesDecoder {
    fn decode_frame(&mut self, event: &SseEvent<'_>, answer: &mut Answer) -> Result<()> {
        let frame = RawObject::from_event(event)?;
        let index = frame.u64("output_index");
        let item = || frame.object("item").unwrap_or_default();
        let delta = || frame.text("delta");
        match frame.str("type").as_deref().unwrap_or_default() {
            "response.output_text.delta" => {
                self.mark_streamed(&frame);
                self.push_text(delta(), answer);
            }
            "response.refusal.delta" => {
                answer.is_refusal = true;
                self.mark_streamed(&frame);
                self.push_text(delta(), answer);
            }
            "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" => {
                self.mark_streamed(&frame);
                answer.push_reasoning(delta());
            }
            "response.output_item.added" => self.start_item(index, &item(), answer),
            "response.output_item.done" => self.finish_item(index, &item(), answer),
            "response.function_call_arguments.delta" => {
                self.push_arguments(&frame, delta(), false, answer);
            }
            "response.function_call_arguments.done" => {
                self.push_arguments(&frame, frame.text("arguments"), true, answer);
            }
            "response.completed" | "response.incomplete" | "response.failed" | "response.done" => {
                self.finish_response(&frame.object("response").unwrap_or_default(), answer)?;
                answer.is_complete = true;
            }
            kind if kind == "error" || event.event == b"error" || frame.raw("error").is_some() => {
                return Err(failed_response_error(&frame, "error"));
            }
            _ => {}
        }
        Ok(())
    }

    fn decode_body(&mut self, body: &str, answer: &mut Answer) -> Result<()> {
        let response = RawObject::parse(body)?;
        if response.raw("output").is_none() {
            return Err(match response.raw("error").or(response.raw("code")) {
                Some(_) => failed_response_error(&response, "error"),
                None => unexpected_response_error("it has no `output`"),
            });
        }
        self.finish_response(&response, answer)?;
        // Compatible servers omit the status of complete answers.
        if response.raw("status").is_none() {
            answer.finish.get_or_insert(FinishReason::Stop);
        }
        Ok(())
    }

    fn close(&mut self, _answer: &mut Answer) -> Option<Value> {
        self.flush_text(None);
        std::mem::take(&mut self.order).into_state(super::NAME)
    }

    fn incomplete_error(&self) -> ModelError {
        ModelError::truncated(
            "incomplete answer: the connection ended before the answer was complete; send the message again",
        )
    }
}

/// Returns the index and the id of the output item that a frame belongs to.
fn item_key<'a>(frame: &RawObject<'a>) -> (Option<u64>, Cow<'a, str>) {
    let id = frame.text("item_id").or_else(|| frame.text("call_id"));
    (frame.u64("output_index"), id.unwrap_or_default())
}

fn failed_response_error(object: &RawObject<'_>, status_text: &str) -> ModelError {
    let body = match object.value("error") {
        Some(error) => json!({"error": error, "code": object.value("code")}),
        None if object.raw("message").is_some() => object.to_value(),
        None => {
            json!({"error": {"message": format!("the response ended with the status `{status_text}`")}})
        }
    };
    classify(None, None, body.to_string().as_bytes())
}
