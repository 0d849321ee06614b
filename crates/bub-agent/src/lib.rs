//! The builtin plugin: sensible defaults for every stage of a turn.
//!
//! * [`BuiltinAgent`]: the hooks; any of them is replaced by a plugin that is registered later.
//! * [`Agent`]: answers prompts; `turn` is its loop, `offline` what it says when there is no model.
//! * [`tools`]: what the model can do; `runner` makes one call, also for a person's [`command`].
//! * [`policy`]: who may use which tool, and who is asked.
//! * [`Skills`]: directories of instructions, found where the user and the workspace keep them.
//! * [`settings`]: what the configuration says about the agent.
//! * [`shell`]: the commands of the tool `bash`, their processes and output.
//! * [`usage`]: tokens and cost by session, model and day, and the cap of a day.
//! * [`web`]: pages of the web, and why others cannot be read.
//! * `prompt`, `system_prompt`: what the model is told.

use std::hash::{BuildHasher as _, RandomState};

mod agent;
mod agent_loop;
mod builtin;
pub mod command;
mod emitter;
mod no_model;
pub mod policy;
mod prompt;
mod sessions;
pub mod settings;
pub mod shell;
mod skills;
mod spill;
mod steering;
mod system_prompt;
mod tool_runner;
mod tool_set;
pub mod tools;
pub mod usage;
pub mod web;

pub use agent::{Agent, ModelOverride, ModelOverrideFn};
pub use builtin::{BuiltinAgent, BuiltinOptions};
#[doc(hidden)]
pub use skills::read_skill;
pub use skills::{LoadedSkills, Skill, SkillProblem, SkillSource, Skills};

/// Bits nobody can guess.
pub(crate) fn random() -> u128 {
    let mut bytes = [0; 16];
    if getrandom::fill(&mut bytes).is_ok() {
        return u128::from_le_bytes(bytes);
    }
    // Without the system's generator the hasher's keys are the best there is.
    let part = |number: u8| u128::from(RandomState::new().hash_one(number));
    (part(1) << 64) | part(2)
}
