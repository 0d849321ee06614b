//! The chat-completions format. Nearly every server supports it, with many deviations.

mod calls;
mod decode;
mod encode;

pub(super) use decode::ChatCompletionsDecoder;
pub(super) use encode::encode;

pub(super) const NAME: &str = "openai-chat";

/// Header with the organization of the account.
pub(crate) const ORGANIZATION_HEADER: &str = "openai-organization";

/// Header with the project of the account.
pub(crate) const PROJECT_HEADER: &str = "openai-project";
