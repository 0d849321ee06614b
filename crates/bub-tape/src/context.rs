//! The context of a tape: the anchor its views start with, and the mapping from entries to messages.

use std::{fmt, sync::Arc};

use serde_json::{Map, Value};

use crate::Entry;

/// A custom mapping from entries to messages, instead of the default one.
pub type Selector = Arc<dyn Fn(&[Entry]) -> Vec<Map<String, Value>> + Send + Sync>;

/// The anchor that a view starts with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AnchorSelector {
    /// The latest anchor. If the tape has no anchor, the view starts at the start of the tape.
    #[default]
    Last,
    /// The latest anchor with this name.
    Named(String),
    /// No anchor: the view starts at the start of the tape.
    Whole,
}

/// Selects the entries of a view and maps them to messages.
///
/// ```
/// use bub_tape::{AnchorSelector, TapeContext};
///
/// let context = TapeContext::new().with_anchor(AnchorSelector::Named("release".into()));
/// assert!(context.select.is_none());
/// ```
#[derive(Clone, Default)]
pub struct TapeContext {
    /// The start of the view.
    pub anchor: AnchorSelector,
    /// A custom mapping, or `None` for the default one.
    pub select: Option<Selector>,
}

impl TapeContext {
    /// Creates a context that starts at the latest anchor and uses the default mapping.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the start of the view.
    #[must_use]
    pub fn with_anchor(mut self, anchor: AnchorSelector) -> Self {
        self.anchor = anchor;
        self
    }

    /// Sets a custom mapping from entries to messages.
    #[must_use]
    pub fn with_selector(
        mut self,
        select: impl Fn(&[Entry]) -> Vec<Map<String, Value>> + Send + Sync + 'static,
    ) -> Self {
        self.select = Some(Arc::new(select));
        self
    }
}

impl fmt::Debug for TapeContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TapeContext")
            .field("anchor", &self.anchor)
            .field("custom", &self.select.is_some())
            .finish()
    }
}
