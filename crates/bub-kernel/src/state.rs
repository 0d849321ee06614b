//! The state of a turn, which all hooks of the turn share.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;

use crate::fields::{FieldName, Fields};

/// Prefix of names in the state that bub reserves. Their values are not passed to external plugins.
pub const RUNTIME_PREFIX: &str = "_runtime_";
/// The name of the workspace in the state of a turn.
pub const WORKSPACE_KEY: &str = "_runtime_workspace";

/// The weakly typed state of a turn.
///
/// Cloning is cheap, and clones share one state. A model stream can use its clone after the hook that created the
/// stream has returned. The state has no schema; plugins agree on names.
///
/// ```
/// use bub_kernel::State;
///
/// let state = State::new();
/// state.set("count", 1);
/// assert_eq!(state.get("count"), Some(1.into()));
/// ```
#[derive(Clone, Debug, Default)]
pub struct State(Arc<Mutex<Fields>>);

impl State {
    /// Creates an empty state.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a state with the values of a patch.
    pub fn from_patch(patch: StatePatch) -> Self {
        Self(Arc::new(Mutex::new(patch.0)))
    }

    /// Returns a copy of a value.
    pub fn get(&self, name: &str) -> Option<Value> {
        self.0.lock().get(name).cloned()
    }

    /// Returns a copy of a value if it is a string.
    pub fn get_str(&self, name: &str) -> Option<String> {
        self.0.lock().get_str(name).map(str::to_owned)
    }

    /// Reads a value without copying it. The state is locked while `read` runs, so `read` must not use the state.
    pub fn with_value<R>(&self, name: &str, read: impl FnOnce(Option<&Value>) -> R) -> R {
        read(self.0.lock().get(name))
    }

    /// Sets a value.
    pub fn set(&self, name: impl Into<FieldName>, value: impl Into<Value>) {
        self.0.lock().set(name, value);
    }

    /// Replaces a value with the result of `change`, so that concurrent changes do not overwrite each other. The state
    /// is locked while `change` runs, so `change` must not use the state.
    pub fn update(&self, name: impl Into<FieldName>, change: impl FnOnce(Option<Value>) -> Value) {
        let (name, mut fields) = (name.into(), self.0.lock());
        let value = change(fields.remove(&name));
        fields.set(name, value);
    }

    /// Removes a value and returns it.
    pub fn remove(&self, name: &str) -> Option<Value> {
        self.0.lock().remove(name)
    }

    /// Adds the values of a patch and replaces existing ones.
    pub fn merge(&self, patch: StatePatch) {
        self.0.lock().merge(patch.0);
    }

    /// Returns an independent copy of the state.
    #[must_use]
    pub fn deep_copy(&self) -> Self {
        Self(Arc::new(Mutex::new(self.0.lock().clone())))
    }

    /// Returns a copy of the values for external plugins, without names that start with [`RUNTIME_PREFIX`].
    pub fn public_fields(&self) -> Fields {
        let fields = self.0.lock();
        let public = fields
            .iter()
            .filter(|(name, _)| !name.starts_with(RUNTIME_PREFIX));
        public
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .collect()
    }
}

/// The values that a `load_state` implementation adds to the state.
#[derive(Clone, Debug, Default)]
pub struct StatePatch(Fields);

impl StatePatch {
    /// Creates an empty patch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty patch with space for `capacity` values.
    pub fn with_capacity(capacity: usize) -> Self {
        Self(Fields::with_capacity(capacity))
    }

    /// Sets a value and returns the patch.
    #[must_use]
    pub fn with(mut self, name: impl Into<FieldName>, value: impl Into<Value>) -> Self {
        self.0.set(name, value);
        self
    }
}

impl From<Fields> for StatePatch {
    fn from(fields: Fields) -> Self {
        Self(fields)
    }
}

impl From<Value> for StatePatch {
    /// Converts an object. Any other value becomes an empty patch.
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
