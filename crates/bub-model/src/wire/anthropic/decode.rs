//! Decoder for responses in the Messages format.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::classify::classify;
use crate::sse::SseEvent;
use crate::wire::format_table::{parse_finish_reason, parse_usage};
use crate::wire::raw::RawObject;
use crate::wire::replay::BlockOrder;
use crate::wire::stream::{Answer, FrameDecoder, unexpected_response_error};
use crate::{ModelError, Result};

/// Decodes a response in the Messages format.
#[derive(Default)]
pub(in crate::wire) struct MessagesDecoder {
    message_id: Option<String>,
    open: Vec<(u64, Block)>,
    order: BlockOrder,
    usage: Map<String, Value>,
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
    /// A tool call: its position among the calls, and the input that its start event contains.
    Call {
        index: usize,
        input: Option<Value>,
    },
    /// Any other block, such as redacted thinking, or a call of a tool that the provider runs. It is sent back
    /// unchanged.
    Kept {
        position: usize,
        block: Value,
        input: String,
    },
}

impl MessagesDecoder {
    /// Starts an answer. An answer with another id replaces the previous answer: it comes from a proxy that lost its
    /// connection to the server and repeated the request.
    fn start_message(&mut self, message: &RawObject<'_>, answer: &mut Answer) {
        let id = message.str("id").map(Cow::into_owned);
        if self.message_id.is_some() && self.message_id == id {
            return;
        }
        if self.emitted || !self.open.is_empty() {
            answer.restart();
        }
        answer.finish = None;
        *self = Self {
            message_id: Some(id.unwrap_or_default()),
            ..Self::default()
        };
        self.merge_usage(message);
    }

    fn start_block(&mut self, index: u64, block: &RawObject<'_>, answer: &mut Answer) {
        self.finish_block(index, answer);
        self.emitted = true;
        let open = match block.str("type").as_deref().unwrap_or_default() {
            "text" => {
                self.push_text(block.text("text"), answer);
                Block::Text
            }
            "thinking" => {
                let thinking = block.str("thinking").unwrap_or_default();
                answer.push_reasoning(Some(thinking.clone()));
                Block::Thinking {
                    position: self.order.reserve_block(),
                    thinking: thinking.into_owned(),
                    signature: block.str("signature").unwrap_or_default().into_owned(),
                }
            }
            "tool_use" => {
                let index = answer.start_call(block.text("id"), block.text("name"), String::new());
                self.order.record_call(index, None);
                let input = block.value("input").filter(|input| *input != json!({}));
                Block::Call { index, input }
            }
            _ => Block::Kept {
                position: self.order.reserve_block(),
                block: block.to_value(),
                input: String::new(),
            },
        };
        self.open.push((index, open));
    }

    fn apply_block_delta(&mut self, index: u64, delta: &RawObject<'_>, answer: &mut Answer) {
        match delta.str("type").as_deref().unwrap_or_default() {
            "text_delta" => self.push_text(delta.text("text"), answer),
            "thinking_delta" => {
                let Some(more) = delta.text("thinking") else {
                    return;
                };
                if let Some(Block::Thinking { thinking, .. }) = self.find_open_block(index) {
                    thinking.push_str(&more);
                }
                self.emitted = true;
                answer.push_reasoning(Some(more));
            }
            "signature_delta" => {
                if let (Some(Block::Thinking { signature, .. }), Some(more)) =
                    (self.find_open_block(index), delta.str("signature"))
                {
                    signature.push_str(&more);
                }
            }
            "input_json_delta" => {
                let more = delta.str("partial_json").unwrap_or_default();
                match self.find_open_block(index) {
                    Some(Block::Call { index, input }) if !more.is_empty() => {
                        *input = None;
                        answer.push_arguments(*index, more.into_owned());
                    }
                    Some(Block::Kept { input, .. }) => input.push_str(&more),
                    _ => {}
                }
            }
            // Ignore citations: text is sent back as plain text without them.
            _ => {}
        }
    }

    fn push_text(&mut self, text: Option<Cow<'_, str>>, answer: &mut Answer) {
        let Some(text) = text else { return };
        self.emitted = true;
        self.order.record_text(text.len(), None);
        answer.push_text(text);
    }

    fn finish_block(&mut self, index: u64, answer: &mut Answer) {
        let Some(at) = self.open.iter().position(|(open, _)| *open == index) else {
            return;
        };
        match self.open.remove(at).1 {
            Block::Call {
                index,
                input: Some(input),
            } => answer.push_arguments(index, input.to_string()),
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
                mut block,
                input,
            } => {
                // The input that arrived in deltas replaces that of the start event, if it is valid JSON.
                let input = serde_json::from_str::<Value>(&input);
                if let (Ok(input), Some(block)) = (input, block.as_object_mut()) {
                    block.insert("input".into(), input);
                }
                self.order.fill_block(position, block);
            }
            Block::Text | Block::Call { .. } | Block::Thinking { .. } => {}
        }
    }

    fn find_open_block(&mut self, index: u64) -> Option<&mut Block> {
        self.open
            .iter_mut()
            .find(|(open, _)| *open == index)
            .map(|(_, block)| block)
    }

    /// Merges the counts in a message or frame into earlier ones. The server sends counts at the start, and corrected,
    /// possibly incomplete counts at the end.
    fn merge_usage(&mut self, object: &RawObject<'_>) {
        if let Some(Value::Object(newer)) = object.value("usage") {
            let newer = newer.into_iter().filter(|(_, value)| !value.is_null());
            self.usage.extend(newer);
        }
    }
}

impl FrameDecoder for MessagesDecoder {
    fn decode_frame(&mut self, event: &SseEvent<'_>, answer: &mut Answer) -> Result<()> {
        let frame = RawObject::from_event(event)?;
        let index = frame.u64("index").unwrap_or(0);
        let object = |key: &str| frame.object(key).unwrap_or_default();
        match frame.str("type").as_deref().unwrap_or_default() {
            "message_start" => self.start_message(&object("message"), answer),
            "content_block_start" => self.start_block(index, &object("content_block"), answer),
            "content_block_delta" => self.apply_block_delta(index, &object("delta"), answer),
            "content_block_stop" => self.finish_block(index, answer),
            "message_delta" => {
                set_stop_reason(&object("delta"), answer);
                self.merge_usage(&frame);
            }
            "message_stop" => answer.is_complete = true,
            _ if event.event == b"error" || frame.raw("error").is_some() => {
                return Err(classify(None, None, event.data));
            }
            _ => {}
        }
        Ok(())
    }

    fn decode_body(&mut self, body: &str, answer: &mut Answer) -> Result<()> {
        let message = RawObject::parse(body)?;
        if message.raw("content").is_none() {
            return Err(match message.raw("error") {
                Some(_) => classify(None, None, body.as_bytes()),
                None => unexpected_response_error("it has no `content`"),
            });
        }
        self.start_message(&message, answer);
        for (index, block) in (0..).zip(message.objects("content")) {
            self.start_block(index, &block, answer);
            self.finish_block(index, answer);
        }
        set_stop_reason(&message, answer);
        Ok(())
    }

    fn close(&mut self, answer: &mut Answer) -> Option<Value> {
        while let Some((index, _)) = self.open.first() {
            self.finish_block(*index, answer);
        }
        if !self.usage.is_empty() {
            let usage = std::mem::take(&mut self.usage);
            answer.usage = Some(parse_usage(super::NAME, Value::Object(usage)));
        }
        std::mem::take(&mut self.order).into_state(super::NAME)
    }

    fn incomplete_error(&self) -> ModelError {
        ModelError::truncated("incomplete answer: the stream ended without a stop reason")
    }
}

fn set_stop_reason(object: &RawObject<'_>, answer: &mut Answer) {
    if let Some(reason) = object.text("stop_reason") {
        answer.finish = Some(parse_finish_reason(super::NAME, &reason));
    }
}
