//! The Responses format: items instead of messages, and encrypted reasoning that must be sent back.

mod decode;
mod encode;
mod items;

pub(super) use decode::ResponsesDecoder;
pub(super) use encode::encode;

pub(super) const NAME: &str = "openai-responses";
