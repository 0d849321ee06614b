//! The skills that a turn has loaded.

use bub_kernel::State;
use serde_json::{Value, json};

use super::{Skill, SkillSource};

/// The key of the list of loaded skills in the state of a turn.
const LOADED_SKILLS_KEY: &str = "_runtime_loaded_skills";

/// The skills whose text the model has seen in a turn. They are stored in the state of the turn.
///
/// Environment variables are granted to a skill as it was when it was loaded. A skill file that is written later under
/// the same name does not get these variables.
#[derive(Clone, Debug, Default)]
pub struct LoadedSkills(State);

/// A loaded skill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoadedSkill {
    pub(super) name: String,
    pub(super) source: SkillSource,
    /// The environment variables that the skill requests.
    pub(super) requested_env: Vec<String>,
}

impl LoadedSkills {
    /// Creates a handle to the list in the state of a turn.
    pub fn from_state(state: &State) -> Self {
        Self(state.clone())
    }

    /// Returns the names in loading order.
    pub fn names(&self) -> Vec<String> {
        self.all().into_iter().map(|skill| skill.name).collect()
    }

    /// Clears the list, so that the run of a subagent starts without loaded skills.
    pub(crate) fn clear(&self) {
        self.0.remove(LOADED_SKILLS_KEY);
    }

    pub(super) fn add(&self, skill: &Skill) {
        let loaded = json!({"name": skill.name, "source": skill.source.to_string(), "asks": skill.requested_env});
        // Read-only tool calls, such as those of `skill`, run concurrently.
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
            all.filter_map(LoadedSkill::from_value).collect()
        })
    }
}

impl LoadedSkill {
    fn from_value(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name)?.as_str();
        let requested_env = value.get("asks")?.as_array()?.iter();
        Some(Self {
            name: text("name")?.to_owned(),
            source: SkillSource::from_name(text("source")?)?,
            requested_env: requested_env
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
        })
    }
}
