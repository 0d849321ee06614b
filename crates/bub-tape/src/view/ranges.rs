//! A short form of the entries in a view.

use crate::{Entry, EntryId, EntryKind};

/// The entries from which a view is built, to find those that it skips.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// The entries that a view can show, in the order of the view.
    shown: Vec<EntryId>,
    /// Entries that a view can show, but that are elsewhere in this view or not in it, because they were moved or
    /// replaced.
    pub(super) hidden: Vec<EntryId>,
    /// Whether media of earlier turns are in the entries.
    pub(super) shows_earlier_media: bool,
}

impl Conversation {
    /// Adds the entries of a view.
    pub(super) fn add_entries(&mut self, entries: &[Entry]) {
        let is_shown = |entry: &&Entry| entry.is_in_context() && is_conversation(&entry.kind);
        let shown = entries.iter().filter(is_shown).map(|entry| entry.id);
        self.shown.extend(shown);
    }

    /// Returns the ids as ranges of the first and the last id. A range contains all entries between them that a view
    /// can show, so a conversation without gaps is one range. Carried entries, which come from before `origin`, form a
    /// range only if their ids are consecutive.
    pub(super) fn ranges(
        &self,
        ids: &[EntryId],
        origin: Option<EntryId>,
    ) -> Vec<(EntryId, EntryId)> {
        let mut ranges: Vec<(EntryId, EntryId)> = Vec::new();
        let mut following: &[EntryId] = &[];
        for &id in ids {
            let is_next = following.first() == Some(&id);
            if !is_next {
                let index = self.shown.iter().position(|shown| *shown == id);
                following = index
                    .and_then(|index| self.shown.get(index..))
                    .unwrap_or_default();
            }
            let is_shown = !following.is_empty();
            following = following.get(1..).unwrap_or_default();
            let is_contiguous = |last: EntryId| {
                let is_hidden = |hidden: &EntryId| last < *hidden && *hidden < id;
                let is_carried = origin.is_some_and(|origin| last < origin);
                last < id && !is_carried && !self.hidden.iter().any(is_hidden)
            };
            match ranges.last_mut() {
                Some((_, last))
                    if is_shown && last.next() == id || is_next && is_contiguous(*last) =>
                {
                    *last = id;
                }
                _ => ranges.push((id, id)),
            }
        }
        ranges
    }
}

fn is_conversation(kind: &EntryKind) -> bool {
    matches!(
        kind,
        EntryKind::Anchor | EntryKind::Message | EntryKind::ToolCall | EntryKind::ToolResult
    )
}
