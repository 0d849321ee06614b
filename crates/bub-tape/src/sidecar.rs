//! Sidecars: companion tapes that plugins declare and that each session tape gets.

/// A companion of every session tape, stored as `<tape>__sidecar__<name>`.
///
/// bub forks, merges, archives and resets it together with its tape.
///
/// ```
/// use bub_tape::Sidecar;
///
/// let sidecar = Sidecar::new("notes").with_description("Notes of the agent");
/// assert_eq!(sidecar.name, "notes");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sidecar {
    /// The name, unique per tape.
    pub name: String,
    /// One line that describes the sidecar to users.
    pub description: String,
}

impl Sidecar {
    /// Creates a sidecar without a description.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            description: String::new(),
        }
    }

    /// Sets the description.
    #[must_use]
    pub fn with_description(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }
}
