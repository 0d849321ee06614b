//! What a plugin says about a sidecar tape it wants beside every session tape.

/// A named companion of a session tape, stored as `<tape>__sidecar__<name>`.
///
/// It follows its tape: forked, merged, archived and reset together with it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sidecar {
    /// The name, unique per tape.
    pub name: String,
    /// One line for people.
    pub description: String,
}

impl Sidecar {
    /// A sidecar of that name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            description: String::new(),
        }
    }

    /// Says what it is for.
    #[must_use]
    pub fn described(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }
}
