//! Which skills a turn has loaded.

use std::sync::{Arc, Mutex, PoisonError};

use super::Skill;

/// The skills whose text the model of this turn has seen: a slot of the turn's state.
///
/// Variables are granted to what was loaded, not to a name: a file written later cannot take its place.
#[derive(Debug, Default)]
pub struct LoadedSkills(Mutex<Vec<Arc<Skill>>>);

impl LoadedSkills {
    /// The names, in the order of loading.
    pub fn names(&self) -> Vec<String> {
        self.all()
            .iter()
            .map(|skill| skill.name().to_owned())
            .collect()
    }

    pub(super) fn add(&self, skill: &Arc<Skill>) {
        let mut loaded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !loaded.iter().any(|known| known == skill) {
            loaded.push(Arc::clone(skill));
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<Skill>> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
