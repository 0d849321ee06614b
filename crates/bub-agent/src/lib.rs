//! The builtin plugin: default implementations for every stage of a turn.
//!
//! * [`BuiltinAgent`]: the hook implementations. A plugin that is registered later can replace each of them.
//! * [`Agent`]: answers prompts. `agent_loop` calls the model and runs its tool calls; `no_model` answers if no
//!   model is configured.
//! * [`tools`]: the builtin tools. `tool_runner` runs one tool call, for the model and for a [comma command](command).
//! * [`policy`]: rules that allow, ask about or deny tool calls, and approvals.
//! * [`Skills`]: the skills of the workspace, of the user and of bub itself.
//! * [`Sandbox`]: how the agent's commands are confined. [`files`]: the files that tools may use.
//! * [`settings`]: the agent's settings.
//! * [`shell`]: processes and output of the tool `bash`.
//! * [`usage`]: token usage and cost by session, model and day, and the daily limits.
//! * `prompt`, `system_prompt`: the user prompt and the system prompt of a turn.

use std::{
    fs::File,
    hash::{BuildHasher as _, RandomState},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use bub_kernel::State;
use sha2::{Digest as _, Sha256};

mod agent;
mod agent_loop;
mod attachments;
mod builtin;
mod code_mode;
pub mod command;
pub mod conversation;
mod emitter;
mod exposure;
pub mod files;
mod no_model;
pub mod policy;
mod prompt;
mod sandbox;
mod sessions;
pub mod settings;
pub mod shell;
mod skills;
mod spill;
mod steering;
mod system_prompt;
mod tool_definition;
mod tool_runner;
mod tool_set;
pub mod tools;
pub mod usage;

pub use agent::{Agent, ModelOverride, ModelOverrideFn};
pub use agent_loop::{HANDOFF_EVENT, HANDOFF_PROMPT, estimate_tokens};
#[doc(hidden)]
pub use attachments::{fit_image, office_part_text, office_text};
pub use builtin::{BuiltinAgent, BuiltinOptions};
pub use exposure::WorkspaceExposure;
pub use sandbox::Sandbox;
pub use sessions::record_session_switch;
#[doc(hidden)]
pub use skills::read_skill;
pub use skills::{LoadedSkills, Skill, SkillProblem, SkillSource, Skills};
pub use tool_definition::tool_definition;

/// Returns at most `max_chars` characters of a text, with an ellipsis if the text is longer.
pub(crate) fn truncate(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Returns the workspace of a turn, which the state names.
pub(crate) fn workspace(state: &State) -> Option<PathBuf> {
    state.get_str("_runtime_workspace").map(PathBuf::from)
}

/// Reads at most `max_bytes` of a regular file. Fails for pipes and devices: they may have no end, and opening one may
/// block.
pub(crate) fn read_head(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    if !path.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(max_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns 128 bits that depend only on a text, for names that a replay must repeat.
pub(crate) fn content_bits(text: &str) -> u128 {
    let digest = Sha256::digest(text);
    u128::from_be_bytes(*digest.first_chunk().unwrap_or(&[0; 16]))
}

/// Returns 128 random bits from the system's secure generator.
pub(crate) fn random_bits() -> u128 {
    let mut bytes = [0; 16];
    if getrandom::fill(&mut bytes).is_ok() {
        return u128::from_le_bytes(bytes);
    }
    // Without the system's generator, the keys of std's hasher are the best source of randomness.
    let part = |number: u8| u128::from(RandomState::new().hash_one(number));
    (part(1) << 64) | part(2)
}
