//! Decoder for responses in the Messages format.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::usage;
use crate::classify::classify;
use crate::sse::SseEvent;
use crate::wire::raw::RawObject;
use crate::wire::replay::BlockOrder;
use crate::wire::stream::{DecodeStatus, FrameDecoder, unexpected_response_error};
use crate::wire::{WireFormat, error_status};
use crate::{FinishReason, ModelError, ModelEvent, ToolCallDelta};

/// Decodes a response in the Messages format.
#[derive(Default)]
pub(in crate::wire) struct MessagesDecoder {
    message_id: Option<String>,
    open: Vec<(u64, Block)>,
    calls: usize,
    order: BlockOrder,
    usage: Map<String, Value>,
    finish: Option<FinishReason>,
    emitted: bool,
}

/// An incomplete content block.
enum Block {
    Text,
    Thinking {
        position: usize,
        thinking: String,
        signature: String,
    },
    /// A tool call: its position, and the input in its start event.
    Call {
        index: usize,
        input: Option<Value>,
    },
    /// Any other block, such as a call of a tool of the provider, or redacted thinking. It is sent back unchanged.
    Kept {
        position: usize,
        block: Value,
        input: String,
    },
}

impl MessagesDecoder {
    pub(in crate::wire) fn new() -> Self {
        Self::default()
    }

    /// Starts an answer. A second answer with another id replaces the first one: it comes from a proxy that lost its
    /// upstream connection and repeated the request.
    fn start_message(&mut self, message: &RawObject<'_>, out: &mut Vec<ModelEvent>) {
        let id = message.str("id").map(Cow::into_owned);
        if self.message_id.is_some() && self.message_id == id {
            return;
        }
        if self.emitted || !self.open.is_empty() {
            out.push(ModelEvent::Restart);
        }
        *self = Self {
            message_id: Some(id.unwrap_or_default()),
            ..Self::default()
        };
        if let Some(counts) = message.value("usage") {
            usage::merge_usage(&mut self.usage, counts);
        }
    }

    fn start_block(&mut self, index: u64, block: &RawObject<'_>, out: &mut Vec<ModelEvent>) {
        self.finish_block(index, out);
        self.emitted = true;
        let open = match block.str("type").as_deref().unwrap_or_default() {
            "text" => {
                self.push_text(block.text("text").as_deref(), out);
                Block::Text
            }
            "thinking" => {
                let thinking = block.str("thinking").unwrap_or_default().into_owned();
                if !thinking.is_empty() {
                    out.push(ModelEvent::Reasoning(thinking.clone()));
                }
                Block::Thinking {
                    position: self.order.reserve_block(),
                    thinking,
                    signature: block.str("signature").unwrap_or_default().into_owned(),
                }
            }
            "tool_use" => self.start_call(block, out),
            _ => Block::Kept {
                position: self.order.reserve_block(),
                block: block.to_value(),
                input: String::new(),
            },
        };
        self.open.push((index, open));
    }

    fn start_call(&mut self, block: &RawObject<'_>, out: &mut Vec<ModelEvent>) -> Block {
        let index = self.calls;
        self.calls += 1;
        self.order.record_call(index, None);
        out.push(ModelEvent::ToolCall(ToolCallDelta {
            index,
            id: block.text("id").map(Cow::into_owned),
            name: block.text("name").map(Cow::into_owned),
            arguments: String::new(),
        }));
        let input = block.value("input").filter(|input| *input != json!({}));
        Block::Call { index, input }
    }

    fn apply_block_delta(&mut self, index: u64, delta: &RawObject<'_>, out: &mut Vec<ModelEvent>) {
        match delta.str("type").as_deref().unwrap_or_default() {
            "text_delta" => self.push_text(delta.text("text").as_deref(), out),
            "thinking_delta" => {
                let Some(more) = delta.text("thinking") else {
                    return;
                };
                if let Some(Block::Thinking { thinking, .. }) = self.find_open_block(index) {
                    thinking.push_str(&more);
                }
                self.emitted = true;
                out.push(ModelEvent::Reasoning(more.into_owned()));
            }
            "signature_delta" => {
                if let (Some(Block::Thinking { signature, .. }), Some(more)) =
                    (self.find_open_block(index), delta.str("signature"))
                {
                    signature.push_str(&more);
                }
            }
            "input_json_delta" => {
                self.push_input(index, &delta.str("partial_json").unwrap_or_default(), out);
            }
            // Ignore citations: text is sent back as plain text without them.
            _ => {}
        }
    }

    fn push_text(&mut self, text: Option<&str>, out: &mut Vec<ModelEvent>) {
        let Some(text) = text else { return };
        self.emitted = true;
        self.order.record_text(text.len(), None);
        out.push(ModelEvent::Text(text.to_owned()));
    }

    fn push_input(&mut self, index: u64, more: &str, out: &mut Vec<ModelEvent>) {
        match self.find_open_block(index) {
            Some(Block::Call { index, input }) if !more.is_empty() => {
                *input = None;
                let index = *index;
                out.push(arguments_delta(index, more.to_owned()));
            }
            Some(Block::Kept { input, .. }) => input.push_str(more),
            _ => {}
        }
    }

    fn finish_block(&mut self, index: u64, out: &mut Vec<ModelEvent>) {
        let Some(at) = self.open.iter().position(|(open, _)| *open == index) else {
            return;
        };
        match self.open.remove(at).1 {
            Block::Call {
                index,
                input: Some(input),
            } => out.push(arguments_delta(index, input.to_string())),
            Block::Thinking {
                position,
                thinking,
                signature,
            } if !signature.is_empty() => {
                self.order.fill_block(
                    position,
                    json!({"type": "thinking", "thinking": thinking, "signature": signature}),
                );
            }
            Block::Kept {
                position,
                block,
                input,
            } => self.order.fill_block(position, with_input(block, &input)),
            Block::Text | Block::Call { .. } | Block::Thinking { .. } => {}
        }
    }

    fn find_open_block(&mut self, index: u64) -> Option<&mut Block> {
        self.open
            .iter_mut()
            .find(|(open, _)| *open == index)
            .map(|(_, block)| block)
    }

    /// Records the stop reason and the token counts.
    fn record_stop_reason(&mut self, reason: Option<&str>, counts: Option<Value>) {
        if let Some(reason) = reason {
            self.finish = Some(parse_finish_reason(reason));
        }
        if let Some(counts) = counts {
            usage::merge_usage(&mut self.usage, counts);
        }
    }
}

impl FrameDecoder for MessagesDecoder {
    fn decode_frame(
        &mut self,
        event: &SseEvent<'_>,
        out: &mut Vec<ModelEvent>,
    ) -> Result<DecodeStatus, ModelError> {
        let frame = RawObject::from_event(event)?;
        let index = frame.u64("index").unwrap_or(0);
        match frame.str("type").as_deref().unwrap_or_default() {
            "message_start" => {
                self.start_message(&frame.object("message").unwrap_or_default(), out);
            }
            "content_block_start" => {
                self.start_block(
                    index,
                    &frame.object("content_block").unwrap_or_default(),
                    out,
                );
            }
            "content_block_delta" => {
                self.apply_block_delta(index, &frame.object("delta").unwrap_or_default(), out);
            }
            "content_block_stop" => self.finish_block(index, out),
            "message_delta" => {
                let delta = frame.object("delta").unwrap_or_default();
                self.record_stop_reason(delta.text("stop_reason").as_deref(), frame.value("usage"));
            }
            "message_stop" => return Ok(DecodeStatus::Done),
            _ if event.event == b"error" || frame.raw("error").is_some() => {
                return Err(frame_error(&frame, event.data));
            }
            _ => {}
        }
        Ok(DecodeStatus::More)
    }

    fn decode_body(&mut self, body: &str, out: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        let message = RawObject::parse(body)?;
        if message.raw("content").is_none() {
            return Err(match message.raw("error") {
                Some(_) => frame_error(&message, body.as_bytes()),
                None => unexpected_response_error("it has no `content`"),
            });
        }
        self.start_message(&message, out);
        for (index, block) in (0..).zip(message.objects("content")) {
            self.start_block(index, &block, out);
            self.finish_block(index, out);
        }
        self.record_stop_reason(message.text("stop_reason").as_deref(), None);
        Ok(())
    }

    fn has_finish_reason(&self) -> bool {
        self.finish.is_some()
    }

    fn finish(&mut self, out: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        let Some(finish) = self.finish.take() else {
            return Err(ModelError::truncated(
                "incomplete answer: the stream ended without a stop reason",
            ));
        };
        while let Some((index, _)) = self.open.first() {
            self.finish_block(*index, out);
        }
        out.extend(usage::parse_usage(std::mem::take(&mut self.usage)).map(ModelEvent::Usage));
        out.extend(
            std::mem::take(&mut self.order)
                .into_state(super::NAME)
                .map(ModelEvent::ProviderState),
        );
        out.push(ModelEvent::Finish(finish));
        Ok(())
    }
}

fn arguments_delta(index: usize, arguments: String) -> ModelEvent {
    ModelEvent::ToolCall(ToolCallDelta {
        index,
        arguments,
        ..ToolCallDelta::default()
    })
}

/// Adds the streamed input to a block of the provider's tools.
fn with_input(mut block: Value, input: &str) -> Value {
    let input: Option<Value> = serde_json::from_str(input).ok();
    if let (Some(input), Some(block)) = (input, block.as_object_mut()) {
        block.insert("input".into(), input);
    }
    block
}

fn frame_error(frame: &RawObject<'_>, body: &[u8]) -> ModelError {
    let status = frame.object("error").as_ref().and_then(error_status);
    classify(status, None, body, WireFormat::Messages)
}

fn parse_finish_reason(name: &str) -> FinishReason {
    match name {
        "end_turn" | "stop_sequence" => FinishReason::Stop,
        "tool_use" => FinishReason::ToolCalls,
        "max_tokens" => FinishReason::Length,
        "refusal" => FinishReason::Refusal,
        other => FinishReason::Other(other.to_owned()),
    }
}
