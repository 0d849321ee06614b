//! Which skills a turn has loaded.

use bub_kernel::State;
use serde_json::{Value, json};

use super::{Skill, SkillSource};

/// Where the state of a turn lists them.
const LOADED_SKILLS_KEY: &str = "_runtime_loaded_skills";

/// The skills whose text the model of a turn has seen, kept in the state of the turn.
///
/// Environment variables are granted to a skill as it was when it was loaded, not to its name: a file that is written
/// later cannot take its place.
#[derive(Clone, Debug, Default)]
pub struct LoadedSkills(State);

/// A loaded skill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoadedSkill {
    pub(super) name: String,
    pub(super) source: SkillSource,
    /// The environment variables it asks for.
    pub(super) asks: Vec<String>,
}

impl LoadedSkills {
    /// The skills that a turn with this state has loaded.
    pub fn from_state(state: &State) -> Self {
        Self(state.clone())
    }

    /// The names, in the order of loading.
    pub fn names(&self) -> Vec<String> {
        self.all().into_iter().map(|skill| skill.name).collect()
    }

    /// Forgets all of them, for a nested run.
    pub(crate) fn clear(&self) {
        self.0.remove(LOADED_SKILLS_KEY);
    }

    pub(super) fn add(&self, skill: &Skill) {
        let loaded =
            json!({"name": skill.name, "source": skill.source.to_string(), "asks": skill.asks});
        // Calls that only read, such as those of `skill`, run at the same time.
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
        self.0.with(LOADED_SKILLS_KEY, |all| {
            let all = all.and_then(Value::as_array).into_iter().flatten();
            all.filter_map(LoadedSkill::from_value).collect()
        })
    }
}

impl LoadedSkill {
    fn from_value(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name)?.as_str();
        let asks = value.get("asks")?.as_array()?.iter();
        Some(Self {
            name: text("name")?.to_owned(),
            source: SkillSource::from_name(text("source")?)?,
            asks: asks.filter_map(Value::as_str).map(str::to_owned).collect(),
        })
    }
}
