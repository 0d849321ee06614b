//! Which entries of a tape are wanted.

pub(crate) mod dates;
mod execute;
pub(crate) mod fold;
pub(crate) mod lines;
pub(crate) mod substring;
pub(crate) mod text;

use crate::EntryKind;

/// A request for entries, evaluated in the order window, dates, text, kinds, limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct Query {
    /// Text that must occur in the entry.
    pub text: Option<String>,
    /// The part of the tape between anchors.
    pub window: AnchorWindow,
    /// The part of the tape between dates.
    pub dates: DateRange,
    /// Only these kinds; empty means all.
    pub kinds: Vec<EntryKind>,
    /// At most this many.
    pub limit: Option<usize>,
    /// Which end comes first, and therefore which end a limit keeps.
    pub order: Order,
}

/// A part of the tape, exclusive of the anchors that bound it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AnchorWindow {
    /// The whole tape.
    #[default]
    All,
    /// What follows the latest anchor.
    AfterLast,
    /// What follows the latest anchor of that name.
    After(String),
    /// What lies between the latest anchor of the first name and the first one of the second name after it.
    Between(String, String),
}

/// Dates as typed by a person; either end may be open, both are inclusive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DateRange {
    /// From this date on; a bare date means its first microsecond.
    pub start: Option<String>,
    /// Up to this date; a bare date means its last microsecond.
    pub end: Option<String>,
}

/// The order of the answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// As they were written.
    #[default]
    OldestFirst,
    /// The latest first.
    NewestFirst,
}

impl Query {
    /// Everything, oldest first.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only entries that contain the text.
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.text = Some(text.into()).filter(|text| !text.is_empty());
        self
    }

    /// Only what follows the latest anchor of that name; an empty name clears the window.
    pub fn after_anchor(mut self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.window = if name.is_empty() {
            AnchorWindow::All
        } else {
            AnchorWindow::After(name)
        };
        self
    }

    /// Only what follows the latest anchor.
    pub fn last_anchor(mut self) -> Self {
        self.window = AnchorWindow::AfterLast;
        self
    }

    /// Only what lies between two anchors.
    pub fn between_anchors(mut self, start: impl Into<String>, end: impl Into<String>) -> Self {
        self.window = AnchorWindow::Between(start.into(), end.into());
        self
    }

    /// Only what was written between two dates.
    pub fn between_dates(mut self, start: impl Into<String>, end: impl Into<String>) -> Self {
        self.dates = DateRange {
            start: Some(start.into()),
            end: Some(end.into()),
        };
        self
    }

    /// Only what was written on or after a date.
    pub fn since(mut self, start: impl Into<String>) -> Self {
        self.dates.start = Some(start.into());
        self
    }

    /// Only what was written on or before a date.
    pub fn until(mut self, end: impl Into<String>) -> Self {
        self.dates.end = Some(end.into());
        self
    }

    /// Only these kinds.
    pub fn kinds(mut self, kinds: impl IntoIterator<Item = EntryKind>) -> Self {
        self.kinds = kinds.into_iter().collect();
        self
    }

    /// At most so many entries.
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The latest entries first.
    pub fn newest_first(mut self) -> Self {
        self.order = Order::NewestFirst;
        self
    }
}
