//! The Messages format: content blocks, signed thinking, named events.

mod decode;
mod encode;

pub(super) use decode::MessagesDecoder;
pub(super) use encode::encode;

pub(super) const KEY_HEADER: &str = "x-api-key";
pub(super) const NAME: &str = "anthropic-messages";
