//! Chat completions: the format nearly every server speaks, each with an accent of its own.

mod calls;
mod decode;
mod encode;

pub(super) use decode::ChatCompletionsDecoder;
pub(super) use encode::encode;

pub(super) const NAME: &str = "openai-chat";

/// The header that names the account's organization.
pub(crate) const ORGANIZATION_HEADER: &str = "openai-organization";

/// The header that names the account's project.
pub(crate) const PROJECT_HEADER: &str = "openai-project";
