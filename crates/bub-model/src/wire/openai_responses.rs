//! Responses: items instead of messages, encrypted reasoning that must come back.

mod decode;
mod encode;
mod items;

pub(super) use decode::ResponsesDecoder;
pub(super) use encode::encode;

pub(super) const NAME: &str = "openai-responses";
