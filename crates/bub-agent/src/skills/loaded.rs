//! The skills that a turn has loaded.

use bub_kernel::State;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Skill, SkillSource};

/// The key of the list of loaded skills in the state of a turn.
const LOADED_SKILLS_KEY: &str = "_runtime_loaded_skills";

/// The skills whose text the model has seen in a turn. They are stored in the state of the turn.
///
/// The list stores which environment variables a skill requested when it was loaded. If the skill's file changes later,
/// its new requests have no effect until the skill is loaded again.
#[derive(Clone, Debug, Default)]
pub struct LoadedSkills(State);

/// A loaded skill.
#[derive(Serialize, Deserialize)]
pub(super) struct LoadedSkill {
    pub(super) name: String,
    pub(super) source: SkillSource,
    /// The environment variables that the skill requests.
    #[serde(rename = "asks")]
    pub(super) requested_env: Vec<String>,
}

impl LoadedSkills {
    /// Creates a handle to the list of loaded skills in the state of a turn.
    pub fn from_state(state: &State) -> Self {
        Self(state.clone())
    }

    /// Returns the names of the loaded skills, in the order in which they were loaded.
    pub fn names(&self) -> Vec<String> {
        self.all().into_iter().map(|skill| skill.name).collect()
    }

    /// Clears the list of loaded skills, so that the run of a subagent starts without loaded skills.
    pub(crate) fn clear(&self) {
        self.0.remove(LOADED_SKILLS_KEY);
    }

    pub(super) fn add(&self, skill: &Skill) {
        let loaded = json!(LoadedSkill {
            name: skill.name.clone(),
            source: skill.source,
            requested_env: skill.requested_env.clone(),
        });
        // Change the list in one operation, because calls of the read-only tool `skill` can run concurrently.
        self.0.update(LOADED_SKILLS_KEY, |all| {
            let mut all = match all {
                Some(Value::Array(all)) => all,
                _ => Vec::new(),
            };
            if !all.contains(&loaded) {
                all.push(loaded);
            }
            all.into()
        });
    }

    pub(super) fn all(&self) -> Vec<LoadedSkill> {
        self.0.with_value(LOADED_SKILLS_KEY, |all| {
            let all = all.and_then(Value::as_array).into_iter().flatten();
            all.filter_map(|skill| LoadedSkill::deserialize(skill).ok())
                .collect()
        })
    }
}
