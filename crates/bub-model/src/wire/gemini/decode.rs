//! Decoder for responses in the `generateContent` format.

use serde_json::{Value, json};

use super::partial::PartialArguments;
use crate::classify::classify;
use crate::sse::SseEvent;
use crate::wire::format_table::{parse_finish_reason, parse_usage};
use crate::wire::raw::{RawObject, parse_objects};
use crate::wire::replay::BlockOrder;
use crate::wire::stream::{Answer, FrameDecoder, unexpected_response_error};
use crate::{FinishReason, ModelError, Result};

/// Decodes a response in the `generateContent` format.
#[derive(Default)]
pub(in crate::wire) struct GenerateContentDecoder {
    /// The call whose arguments are incomplete: its position among the calls, and the arguments received so far.
    open: Option<(usize, PartialArguments)>,
    order: BlockOrder,
}

impl GenerateContentDecoder {
    fn decode_chunk(&mut self, chunk: &RawObject<'_>, answer: &mut Answer) -> Result<()> {
        if chunk.raw("error").is_some() {
            let body = chunk.to_value().to_string();
            return Err(classify(None, None, body.as_bytes()));
        }
        // Some servers send a usage object without counts in early chunks.
        let usage = chunk.value("usageMetadata").filter(has_counts);
        answer.usage = usage
            .map(|raw| parse_usage(super::NAME, raw))
            .or(answer.usage.take());
        let feedback = chunk.object("promptFeedback").unwrap_or_default();
        if feedback.text("blockReason").is_some() {
            answer.finish = Some(FinishReason::ContentFilter);
        }
        let candidates = chunk.objects("candidates");
        let Some(candidate) = candidates
            .iter()
            .find(|candidate| candidate.u64("index").unwrap_or(0) == 0)
        else {
            return Ok(());
        };
        let content = candidate.object("content").unwrap_or_default();
        for part in content.objects("parts") {
            self.decode_part(&part, answer);
        }
        if let Some(name) = candidate.text("finishReason") {
            answer.finish = Some(parse_finish_reason(super::NAME, &name));
        }
        Ok(())
    }

    fn decode_part(&mut self, part: &RawObject<'_>, answer: &mut Answer) {
        let signature = part
            .text("thoughtSignature")
            .map(|signature| json!({"thoughtSignature": signature}));
        if let Some(call) = part.object("functionCall") {
            self.decode_call(&call, signature, answer);
        } else if let Some(text) = part.str("text") {
            if part.raw("thought") == Some("true") {
                answer.push_reasoning(Some(text));
                return;
            }
            if !text.is_empty() || signature.is_some() {
                self.order.record_text(text.len(), signature);
            }
            answer.push_text(text);
        } else if part.raw("executableCode").is_some() || part.raw("codeExecutionResult").is_some()
        {
            self.order.record_block(part.to_value());
        }
    }

    fn decode_call(&mut self, call: &RawObject<'_>, signature: Option<Value>, answer: &mut Answer) {
        let will_continue = call.raw("willContinue") == Some("true");
        let pieces = call.value("partialArgs");
        if let Some(name) = call.text("name") {
            self.finish_call(answer);
            let arguments = call.value("args").filter(|args| *args != json!({}));
            let arguments = arguments.map(|args| args.to_string()).unwrap_or_default();
            let index = answer.start_call(call.text("id"), Some(name), arguments);
            self.order.record_call(index, signature);
            if will_continue || pieces.is_some() {
                self.open = Some((index, PartialArguments::default()));
            }
        }
        let mut pieces = pieces.iter().filter_map(Value::as_array).flatten();
        let is_valid = match &mut self.open {
            Some((_, partial)) => pieces.all(|piece| partial.push_piece(piece).is_some()),
            None => true,
        };
        if !is_valid {
            self.abandon_call(answer);
        } else if !will_continue {
            self.finish_call(answer);
        }
    }

    /// Emits the arguments of the open call, the one whose arguments arrive in pieces, and closes the call.
    fn finish_call(&mut self, answer: &mut Answer) {
        if let Some((index, partial)) = self.open.take() {
            answer.push_arguments(index, partial.into_json());
        }
    }

    /// Closes the open call, the one whose arguments are incomplete or invalid. Emits the arguments received so far
    /// without their last character, so that they are invalid JSON and the call cannot run.
    fn abandon_call(&mut self, answer: &mut Answer) {
        if let Some((index, partial)) = self.open.take() {
            let mut arguments = partial.into_json();
            arguments.pop();
            if arguments.is_empty() {
                arguments.push('{');
            }
            answer.push_arguments(index, arguments);
        }
    }
}

impl FrameDecoder for GenerateContentDecoder {
    fn decode_frame(&mut self, event: &SseEvent<'_>, answer: &mut Answer) -> Result<()> {
        self.decode_chunk(&RawObject::from_event(event)?, answer)
    }

    /// Decodes one object, or the list of chunks that `streamGenerateContent` returns without `alt=sse`.
    fn decode_body(&mut self, body: &str, answer: &mut Answer) -> Result<()> {
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
                .try_for_each(|chunk| self.decode_chunk(chunk, answer));
        }
        let chunk = RawObject::parse(body)?;
        let known_fields = ["candidates", "promptFeedback", "error", "usageMetadata"];
        if known_fields.iter().all(|key| chunk.raw(key).is_none()) {
            return Err(unexpected_response_error("it has no `candidates`"));
        }
        self.decode_chunk(&chunk, answer)
    }

    fn close(&mut self, answer: &mut Answer) -> Option<Value> {
        self.abandon_call(answer);
        std::mem::take(&mut self.order).into_state(super::NAME)
    }
}

fn has_counts(usage: &Value) -> bool {
    usage.get("totalTokenCount").is_some() || usage.get("promptTokenCount").is_some()
}
