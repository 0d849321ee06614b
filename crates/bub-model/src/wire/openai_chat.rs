//! Chat completions: the format nearly every server speaks, each with an accent of its own.

mod calls;
mod decode;
mod encode;

pub(super) use decode::Decoder;
pub(super) use encode::encode;

pub(super) const NAME: &str = "openai-chat";
