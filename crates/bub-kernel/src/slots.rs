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

    /// Puts a value in, in place of one of the same type.
    pub fn put<T: Any + Send + Sync>(&mut self, value: Arc<T>) {
        self.put_any(TypeId::of::<T>(), value);
    }

    /// Takes over all of `incoming`, which wins where both have a type.
    pub fn merge(&mut self, incoming: Self) {
        for (id, value) in incoming.0 {
            self.put_any(id, value);
        }
    }

    fn put_any(&mut self, id: TypeId, value: Arc<dyn Any + Send + Sync>) {
        match self.0.iter_mut().find(|(known, _)| *known == id) {
            Some((_, old)) => *old = value,
            None => self.0.push((id, value)),
        }
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slots({})", self.0.len())
    }
}
