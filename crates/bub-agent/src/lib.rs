//! The builtin plugin: sensible defaults for every stage of a turn.
//!
//! * [`Builtin`]: the hooks; any of them is replaced by a plugin that is registered later.
//! * [`Agent`]: asks the model that is there; `offline` has the answer when there is none.
//! * `prompt`: what a message looks like to the model.
//! * `system_prompt`: the default instructions and the workspace's `AGENTS.md`.
//! * [`policy`]: who may use which tool, and who is asked. [`command`]: what people type after a comma.
//! * [`Skills`]: directories of instructions, found where the user and the workspace keep them.
//! * `record`: a turn leaves entries on its tape, also when another plugin ran the model.
//! * [`shell`]: the commands of the tool `bash`, their processes and output.
//! * [`tools`]: what the model and people can call.

mod agent;
mod builtin;
pub mod command;
mod offline;
pub mod policy;
mod prompt;
mod record;
pub mod shell;
mod skills;
mod system_prompt;
pub mod tools;

pub use agent::Agent;
pub use builtin::Builtin;
pub use offline::NO_MODEL;
pub use record::wait_for_session;
pub use skills::{LoadedSkills, Problem as SkillProblem, Skill, Skills, Source as SkillSource};
