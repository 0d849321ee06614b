//! From which anchor a view starts, and how its entries become messages.

use std::{fmt, sync::Arc};

use serde_json::{Map, Value};

use crate::{Entry, Query};

/// A replacement for the default mapping from entries to model messages.
pub type Selector = Arc<dyn Fn(&[Entry]) -> Vec<Map<String, Value>> + Send + Sync>;

/// Where a view starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AnchorSelector {
    /// At the latest anchor, which is shown first.
    #[default]
    Last,
    /// At the latest anchor of that name.
    Named(String),
    /// At the beginning of the tape.
    Whole,
}

impl AnchorSelector {
    /// The entries it selects, without the anchor itself.
    pub fn query(&self) -> Query {
        match self {
            Self::Last => Query::new().last_anchor(),
            Self::Named(name) => Query::new().after_anchor(name),
            Self::Whole => Query::new(),
        }
    }
}

/// How a view is made from a tape.
#[derive(Clone, Default)]
pub struct TapeContext {
    /// Where it starts.
    pub anchor: AnchorSelector,
    /// What replaces the default mapping.
    pub select: Option<Selector>,
}

impl TapeContext {
    /// The entries after the latest anchor, in the default mapping.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts at another anchor.
    #[must_use]
    pub fn anchored(mut self, anchor: AnchorSelector) -> Self {
        self.anchor = anchor;
        self
    }

    /// Replaces the mapping.
    #[must_use]
    pub fn selected(
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
