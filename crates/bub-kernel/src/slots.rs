//! Typed places for things that are not data: an agent, a tape, a lifespan, a role.
//!
//! JSON fields travel to other processes and onto disk; slots never do. A slot is found by its type,
//! so nobody can put something else under its name.

use std::{
    any::{Any, TypeId},
    fmt,
    sync::Arc,
};

/// At most one value of each type.
#[derive(Clone, Default)]
pub struct Slots(Vec<(TypeId, Arc<dyn Any + Send + Sync>)>);

impl Slots {
    /// The value of type `T`.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let wanted = TypeId::of::<T>();
        let (_, value) = self.0.iter().find(|(id, _)| *id == wanted)?;
        Arc::clone(value).downcast().ok()
    }

    /// Puts a value in and returns the one of the same type that was there.
    pub fn put<T: Any + Send + Sync>(
        &mut self,
        value: Arc<T>,
    ) -> Option<Arc<dyn Any + Send + Sync>> {
        self.put_any(TypeId::of::<T>(), value)
    }

    /// Takes the value of type `T` out.
    pub fn remove<T: Any + Send + Sync>(&mut self) -> Option<Arc<dyn Any + Send + Sync>> {
        let at = self
            .0
            .iter()
            .position(|(known, _)| *known == TypeId::of::<T>())?;
        Some(self.0.remove(at).1)
    }

    /// Takes over all of `incoming`, which wins where both have a type, and returns what it replaced.
    #[must_use = "what was replaced is dropped here, and its `Drop` is the code of a plugin"]
    pub fn merge(&mut self, incoming: Self) -> Self {
        let replaced = incoming
            .0
            .into_iter()
            .filter_map(|(id, value)| Some((id, self.put_any(id, value)?)));
        Self(replaced.collect())
    }

    fn put_any(
        &mut self,
        id: TypeId,
        value: Arc<dyn Any + Send + Sync>,
    ) -> Option<Arc<dyn Any + Send + Sync>> {
        if let Some((_, old)) = self.0.iter_mut().find(|(known, _)| *known == id) {
            return Some(std::mem::replace(old, value));
        }
        self.0.push((id, value));
        None
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slots({})", self.0.len())
    }
}
