//! `generateContent`: contents and parts, thought signatures, arguments in pieces by path.

mod decode;
mod encode;
mod partial;

pub(super) use decode::GenerateContentDecoder;
pub(super) use encode::encode;

pub(super) const KEY_HEADER: &str = "x-goog-api-key";
pub(super) const NAME: &str = "gemini";
