//! The `generateContent` format: contents and parts, thought signatures, partial arguments with JSON paths.

mod decode;
mod encode;
mod partial;

pub(super) use decode::GenerateContentDecoder;
pub(super) use encode::encode;

pub(super) const KEY_HEADER: &str = "x-goog-api-key";
pub(super) const NAME: &str = "gemini";
