//! Decoder for responses in the `generateContent` format.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::partial::PartialArguments;
use crate::classify::classify;
use crate::sse::SseEvent;
use crate::wire::raw::{RawObject, as_count, parse_objects};
use crate::wire::replay::BlockOrder;
use crate::wire::stream::{DecodeStatus, FrameDecoder, unexpected_response_error};
use crate::wire::{WireFormat, error_status};
use crate::{FinishReason, ModelError, ModelEvent, ToolCallDelta, Usage};

/// Decodes a response in the `generateContent` format.
#[derive(Default)]
pub(in crate::wire) struct GenerateContentDecoder {
    calls: usize,
    /// The call whose arguments are incomplete.
    open: Option<(usize, PartialArguments)>,
    order: BlockOrder,
    usage: Option<Usage>,
    finish: Option<FinishReason>,
}

impl GenerateContentDecoder {
    pub(in crate::wire) fn new() -> Self {
        Self::default()
    }

    fn decode_chunk(
        &mut self,
        chunk: &RawObject<'_>,
        out: &mut Vec<ModelEvent>,
    ) -> Result<(), ModelError> {
        if chunk.raw("error").is_some() {
            return Err(chunk_error(chunk));
        }
        // Some endpoints send a usage object without counts in early chunks.
        let usage = chunk.value("usageMetadata").filter(has_counts);
        self.usage = usage.map(parse_usage).or(self.usage.take());
        let blocked = chunk
            .object("promptFeedback")
            .is_some_and(|feedback| feedback.text("blockReason").is_some());
        if blocked {
            self.finish = Some(FinishReason::ContentFilter);
        }
        let candidates = chunk.objects("candidates");
        let Some(candidate) = candidates
            .iter()
            .find(|candidate| candidate.u64("index").unwrap_or(0) == 0)
        else {
            return Ok(());
        };
        for part in candidate
            .object("content")
            .unwrap_or_default()
            .objects("parts")
        {
            self.decode_part(&part, out);
        }
        if let Some(name) = candidate.text("finishReason") {
            self.finish = Some(parse_finish_reason(&name));
        }
        Ok(())
    }

    fn decode_part(&mut self, part: &RawObject<'_>, out: &mut Vec<ModelEvent>) {
        let signature = part
            .text("thoughtSignature")
            .map(|signature| json!({"thoughtSignature": signature}));
        if let Some(call) = part.object("functionCall") {
            self.decode_call(&call, signature, out);
        } else if let Some(text) = part.str("text") {
            if part.raw("thought") == Some("true") {
                out.extend((!text.is_empty()).then(|| ModelEvent::Reasoning(text.into_owned())));
                return;
            }
            if !text.is_empty() || signature.is_some() {
                self.order.record_text(text.len(), signature);
            }
            out.extend((!text.is_empty()).then(|| ModelEvent::Text(text.into_owned())));
        } else if part.raw("executableCode").is_some() || part.raw("codeExecutionResult").is_some()
        {
            self.order.record_block(part.to_value());
        }
    }

    fn decode_call(
        &mut self,
        call: &RawObject<'_>,
        signature: Option<Value>,
        out: &mut Vec<ModelEvent>,
    ) {
        let will_continue = call.raw("willContinue") == Some("true");
        if let Some(name) = call.text("name") {
            self.finish_call(out);
            let index = self.calls;
            self.calls += 1;
            self.order.record_call(index, signature);
            let arguments = call.value("args").filter(|args| *args != json!({}));
            out.push(ModelEvent::ToolCall(ToolCallDelta {
                index,
                id: call.text("id").map(Cow::into_owned),
                name: Some(name.into_owned()),
                arguments: arguments.map(|args| args.to_string()).unwrap_or_default(),
            }));
            if will_continue || call.raw("partialArgs").is_some() {
                self.open = Some((index, PartialArguments::default()));
            }
        }
        let pieces = call.value("partialArgs");
        let is_valid = match &mut self.open {
            Some((_, partial)) => {
                let mut pieces = pieces
                    .as_ref()
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten();
                pieces.all(|piece| partial.push_piece(piece))
            }
            None => true,
        };
        if !is_valid {
            self.abandon_call(out);
        } else if !will_continue {
            self.finish_call(out);
        }
    }

    /// Emits the complete arguments of the open call and closes the call.
    fn finish_call(&mut self, out: &mut Vec<ModelEvent>) {
        if let Some((index, partial)) = self.open.take() {
            let arguments = partial.into_json();
            out.push(ModelEvent::ToolCall(ToolCallDelta {
                index,
                arguments,
                ..ToolCallDelta::default()
            }));
        }
    }

    /// Emits the incomplete arguments of the open call and closes the call. Removes the last character of the arguments,
    /// so that they are invalid JSON and the call cannot run.
    fn abandon_call(&mut self, out: &mut Vec<ModelEvent>) {
        if let Some((index, partial)) = self.open.take() {
            let mut arguments = partial.into_json();
            arguments.pop();
            if arguments.is_empty() {
                arguments.push('{');
            }
            out.push(ModelEvent::ToolCall(ToolCallDelta {
                index,
                arguments,
                ..ToolCallDelta::default()
            }));
        }
    }
}

impl FrameDecoder for GenerateContentDecoder {
    fn decode_frame(
        &mut self,
        event: &SseEvent<'_>,
        out: &mut Vec<ModelEvent>,
    ) -> Result<DecodeStatus, ModelError> {
        self.decode_chunk(&RawObject::from_event(event)?, out)?;
        Ok(DecodeStatus::More)
    }

    /// Decodes one object, or the list of chunks that `streamGenerateContent` returns without `alt=sse`.
    fn decode_body(&mut self, body: &str, out: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        if body.starts_with('[') {
            if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(body) {
                return Err(if error.is_eof() {
                    ModelError::truncated(
                        "incomplete answer: the server ended the response too early",
                    )
                } else {
                    unexpected_response_error(&format!("it is not valid JSON ({error})"))
                });
            }
            return parse_objects(body)
                .iter()
                .try_for_each(|chunk| self.decode_chunk(chunk, out));
        }
        let chunk = RawObject::parse(body)?;
        let known_fields = ["candidates", "promptFeedback", "error", "usageMetadata"];
        if known_fields.iter().all(|key| chunk.raw(key).is_none()) {
            return Err(unexpected_response_error("it has no `candidates`"));
        }
        self.decode_chunk(&chunk, out)
    }

    fn has_finish_reason(&self) -> bool {
        self.finish.is_some()
    }

    fn finish(&mut self, out: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        let Some(finish) = self.finish.take() else {
            return Err(ModelError::truncated(
                "incomplete answer: the stream ended without a finish reason",
            ));
        };
        self.abandon_call(out);
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

fn chunk_error(chunk: &RawObject<'_>) -> ModelError {
    let status = chunk.object("error").as_ref().and_then(error_status);
    classify(
        status,
        None,
        chunk.to_value().to_string().as_bytes(),
        WireFormat::GenerateContent,
    )
}

fn parse_finish_reason(name: &str) -> FinishReason {
    match name {
        "STOP" => FinishReason::Stop,
        "MAX_TOKENS" => FinishReason::Length,
        "SAFETY"
        | "RECITATION"
        | "LANGUAGE"
        | "BLOCKLIST"
        | "PROHIBITED_CONTENT"
        | "SPII"
        | "MODEL_ARMOR"
        | "IMAGE_SAFETY"
        | "IMAGE_PROHIBITED_CONTENT"
        | "IMAGE_RECITATION" => FinishReason::ContentFilter,
        other => FinishReason::Other(other.to_owned()),
    }
}

fn has_counts(usage: &Value) -> bool {
    usage.get("totalTokenCount").is_some() || usage.get("promptTokenCount").is_some()
}

fn parse_usage(raw: Value) -> Usage {
    let count = |key: &str| raw.get(key).and_then(as_count);
    let prompt =
        count("promptTokenCount").unwrap_or(0) + count("toolUsePromptTokenCount").unwrap_or(0);
    let reasoning = count("thoughtsTokenCount");
    let completion = count("candidatesTokenCount").unwrap_or(0) + reasoning.unwrap_or(0);
    Usage {
        prompt,
        completion,
        total: count("totalTokenCount").unwrap_or(prompt + completion),
        cached: count("cachedContentTokenCount"),
        cache_write: None,
        reasoning,
        raw,
    }
}
