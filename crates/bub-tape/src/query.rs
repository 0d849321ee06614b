//! Queries, which select entries of a tape.

pub(crate) mod dates;
mod execute;
pub(crate) mod fold;
pub(crate) mod lines;
pub(crate) mod substring;
pub(crate) mod text;

use crate::EntryKind;

/// Selects entries of a tape. An entry must meet all conditions. The limit applies last.
///
/// ```
/// use bub_tape::{EntryKind, Order, Query};
///
/// let query = Query::new().after_last_anchor().kinds([EntryKind::Message]).limit(10).newest_first();
/// assert_eq!(query.order, Order::NewestFirst);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct Query {
    /// Text that must occur in the entry, in upper or lower case.
    pub text: Option<String>,
    /// The part of the tape to select from, bounded by anchors.
    pub window: AnchorWindow,
    /// The range of dates.
    pub dates: DateRange,
    /// The kinds of entries; empty means all.
    pub kinds: Vec<EntryKind>,
    /// Maximum number of entries.
    pub limit: Option<usize>,
    /// The order of the entries. With a limit, it also decides which entries are returned.
    pub order: Order,
}

/// A part of a tape, bounded by anchors. The bounding anchors are excluded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AnchorWindow {
    /// The complete tape.
    #[default]
    All,
    /// Entries after the latest anchor.
    AfterLast,
    /// Entries after the latest anchor with this name.
    After(String),
    /// Entries between the latest anchor with the first name and the next anchor with the second name.
    Between(String, String),
}

/// A range of dates as typed by a user. Both ends are optional and inclusive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DateRange {
    /// The start. A date without time means its first microsecond in UTC.
    pub start: Option<String>,
    /// The end. A date without time means its last microsecond in UTC.
    pub end: Option<String>,
}

/// The order of entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// Tape order.
    #[default]
    OldestFirst,
    /// Reverse tape order.
    NewestFirst,
}

impl Query {
    /// Creates a query for all entries, oldest first.
    pub fn new() -> Self {
        Self::default()
    }

    /// Selects entries that contain the text. An empty text removes the condition.
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.text = Some(text.into()).filter(|text| !text.is_empty());
        self
    }

    /// Selects entries after the latest anchor with this name. An empty name removes the window.
    pub fn after_anchor(mut self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.window = if name.is_empty() {
            AnchorWindow::All
        } else {
            AnchorWindow::After(name)
        };
        self
    }

    /// Selects entries after the latest anchor.
    pub fn after_last_anchor(mut self) -> Self {
        self.window = AnchorWindow::AfterLast;
        self
    }

    /// Selects entries between two anchors. See [`AnchorWindow::Between`].
    pub fn between_anchors(mut self, start: impl Into<String>, end: impl Into<String>) -> Self {
        self.window = AnchorWindow::Between(start.into(), end.into());
        self
    }

    /// Selects entries from this date on.
    pub fn since(mut self, start: impl Into<String>) -> Self {
        self.dates.start = Some(start.into());
        self
    }

    /// Selects entries up to this date, included.
    pub fn until(mut self, end: impl Into<String>) -> Self {
        self.dates.end = Some(end.into());
        self
    }

    /// Selects entries of these kinds.
    pub fn kinds(mut self, kinds: impl IntoIterator<Item = EntryKind>) -> Self {
        self.kinds = kinds.into_iter().collect();
        self
    }

    /// Sets the maximum number of entries.
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Sets the order to reverse tape order.
    pub fn newest_first(mut self) -> Self {
        self.order = Order::NewestFirst;
        self
    }
}
