//! The state of one turn, shared by every hook of that turn.

use std::{
    any::Any,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;

use crate::{
    fields::{Fields, Name},
    slots::Slots,
};

/// The prefix of names that belong to the runtime: they never leave the process.
pub const RUNTIME_PREFIX: &str = "_runtime_";

/// The shared, weakly typed state of one turn.
///
/// A handle: clones see the same state, also from inside a model stream that outlives the hook
/// which returned it. There is no global schema; plugins agree on names. Things that are not data
/// live in typed [slots](crate::Slots).
#[derive(Clone, Debug, Default)]
pub struct State(Arc<Mutex<Content>>);

#[derive(Clone, Debug, Default)]
struct Content {
    fields: Fields,
    slots: Slots,
}

impl State {
    /// An empty state.
    pub fn new() -> Self {
        Self::default()
    }

    /// A state that starts with what the patch holds.
    pub fn from_patch(patch: StatePatch) -> Self {
        Self(Arc::new(Mutex::new(Content {
            fields: patch.fields,
            slots: patch.slots,
        })))
    }

    /// A copy of a value.
    pub fn get(&self, name: &str) -> Option<Value> {
        self.lock().fields.get(name).cloned()
    }

    /// A copy of a value that is a string.
    pub fn get_str(&self, name: &str) -> Option<String> {
        self.lock().fields.get_str(name).map(str::to_owned)
    }

    /// Looks at a value without copying it. The state is locked meanwhile: `look` must not use it.
    pub fn with<R>(&self, name: &str, look: impl FnOnce(Option<&Value>) -> R) -> R {
        look(self.lock().fields.get(name))
    }

    /// Sets a value.
    pub fn set(&self, name: impl Into<Name>, value: impl Into<Value>) {
        self.lock().fields.set(name, value);
    }

    /// Removes a value and returns it.
    pub fn remove(&self, name: &str) -> Option<Value> {
        self.lock().fields.remove(name)
    }

    /// The thing of type `T`, when somebody put one in.
    pub fn slot<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.lock().slots.get()
    }

    /// Puts a thing into its slot.
    pub fn put_slot<T: Any + Send + Sync>(&self, value: Arc<T>) {
        // What was there is dropped after the lock, because its `Drop` may use this state.
        let replaced = self.lock().slots.put(value);
        drop(replaced);
    }

    /// Empties a slot.
    pub fn drop_slot<T: Any + Send + Sync>(&self) {
        let dropped = self.lock().slots.remove::<T>();
        drop(dropped);
    }

    /// Takes over what the patch holds; it wins over what is there.
    pub fn merge(&self, patch: StatePatch) {
        let mut content = self.lock();
        content.fields.merge(patch.fields);
        let replaced = content.slots.merge(patch.slots);
        drop(content);
        drop(replaced);
    }

    /// A copy that shares nothing with this state any more, for a turn of its own.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self(Arc::new(Mutex::new(self.lock().clone())))
    }

    /// The data in it, without what belongs to the runtime: what another process may see.
    pub fn public_fields(&self) -> Fields {
        let content = self.lock();
        let public = content
            .fields
            .iter()
            .filter(|(name, _)| !name.starts_with(RUNTIME_PREFIX));
        public
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        // A panic between two field writes leaves nothing half done, so the data stays usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one `load_state` implementation contributes.
#[derive(Clone, Debug, Default)]
pub struct StatePatch {
    fields: Fields,
    slots: Slots,
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
            slots: Slots::default(),
        }
    }

    /// The same with a value set.
    #[must_use]
    pub fn with(mut self, name: impl Into<Name>, value: impl Into<Value>) -> Self {
        self.fields.set(name, value);
        self
    }

    /// The same with a thing in its slot.
    #[must_use]
    pub fn with_slot<T: Any + Send + Sync>(mut self, value: Arc<T>) -> Self {
        self.slots.put(value);
        self
    }
}

impl From<Fields> for StatePatch {
    fn from(fields: Fields) -> Self {
        Self {
            fields,
            slots: Slots::default(),
        }
    }
}

impl From<Value> for StatePatch {
    /// Only an object has names; any other value contributes nothing.
    fn from(value: Value) -> Self {
        match value {
            Value::Object(map) => Fields::from(map).into(),
            other => {
                tracing::debug!("load_state.ignored got={other} expected=object");
                Self::default()
            }
        }
    }
}
