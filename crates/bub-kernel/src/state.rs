//! The state of one turn, shared by every hook of that turn.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::fields::{FieldName, Fields};

/// The prefix of names that belong to the runtime: they never leave the process.
pub const RUNTIME_PREFIX: &str = "_runtime_";

/// The shared, weakly typed state of one turn.
///
/// A handle: clones see the same state, also from inside a model stream that outlives the hook
/// which returned it. There is no global schema; plugins agree on names.
#[derive(Clone, Debug, Default)]
pub struct State(Arc<Mutex<Fields>>);

impl State {
    /// An empty state.
    pub fn new() -> Self {
        Self::default()
    }

    /// A state that starts with what the patch holds.
    pub fn from_patch(patch: StatePatch) -> Self {
        Self(Arc::new(Mutex::new(patch.fields)))
    }

    /// A copy of a value.
    pub fn get(&self, name: &str) -> Option<Value> {
        self.lock().get(name).cloned()
    }

    /// A copy of a value that is a string.
    pub fn get_str(&self, name: &str) -> Option<String> {
        self.lock().get_str(name).map(str::to_owned)
    }

    /// Looks at a value without copying it. The state is locked meanwhile: `look` must not use it.
    pub fn with<R>(&self, name: &str, look: impl FnOnce(Option<&Value>) -> R) -> R {
        look(self.lock().get(name))
    }

    /// Sets a value.
    pub fn set(&self, name: impl Into<FieldName>, value: impl Into<Value>) {
        self.lock().set(name, value);
    }

    /// Replaces a value by what `change` makes of it, so that concurrent changes do not overwrite each other. The state
    /// is locked meanwhile: `change` must not use it.
    pub fn update(&self, name: impl Into<FieldName>, change: impl FnOnce(Option<Value>) -> Value) {
        let (name, mut fields) = (name.into(), self.lock());
        let value = change(fields.remove(&name));
        fields.set(name, value);
    }

    /// Removes a value and returns it.
    pub fn remove(&self, name: &str) -> Option<Value> {
        self.lock().remove(name)
    }

    /// Takes over what the patch holds; it wins over what is there.
    pub fn merge(&self, patch: StatePatch) {
        self.lock().merge(patch.fields);
    }

    /// A copy that shares nothing with this state any more, for a turn of its own.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self(Arc::new(Mutex::new(self.lock().clone())))
    }

    /// The data in it, without what belongs to the runtime: what another process may see.
    pub fn public_fields(&self) -> Fields {
        let fields = self.lock();
        let public = fields
            .iter()
            .filter(|(name, _)| !name.starts_with(RUNTIME_PREFIX));
        public
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Fields> {
        // A panic between two field writes leaves nothing half done, so the data stays usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one `load_state` implementation contributes.
#[derive(Clone, Debug, Default)]
pub struct StatePatch {
    fields: Fields,
}

impl StatePatch {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Nothing yet, with room for `capacity` fields.
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            fields: Fields::with_capacity(capacity),
        }
    }

    /// The same with a value set.
    #[must_use]
    pub fn with(mut self, name: impl Into<FieldName>, value: impl Into<Value>) -> Self {
        self.fields.set(name, value);
        self
    }
}

impl From<Fields> for StatePatch {
    fn from(fields: Fields) -> Self {
        Self { fields }
    }
}

impl From<Value> for StatePatch {
    /// Only an object has names; any other value contributes nothing.
    fn from(value: Value) -> Self {
        match value {
            Value::Object(map) => Fields::from(map).into(),
            other => {
                tracing::debug!(got = %other, expected = "object", "load_state.ignored");
                Self::default()
            }
        }
    }
}
