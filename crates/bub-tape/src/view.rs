//! Views: the messages built from a tape for one model call.
//!
//! A view starts with the state of its anchor as a user message, followed by the entries that the anchor carries over
//! and all entries after the anchor. An anchor without content, such as the first one of a tape, adds no message. bub builds it for each model call from these entries only, so its cost does not depend on the length of the
//! tape. Providers accept the messages whatever the tape contains: every tool call is followed by exactly one result,
//! and every result has a call.

mod builder;
mod calls;
mod carry;
mod line_filter;
mod media;
mod ranges;
mod slots;

use std::sync::Arc;

use futures_util::TryStreamExt as _;
use serde_json::{Map, Value};

use self::{builder::ViewBuilder, line_filter::ViewLineFilter, ranges::Conversation};
pub use self::{
    calls::INTERRUPTED_RESULT,
    media::MediaLimit,
    slots::{HandoffSlots, HandoffSource},
};
use crate::{
    AnchorQuery, AnchorSelector, Entry, EntryId, EntryKind, EntryRange, Result, Tape, TapeContext,
    TapeError,
};

/// Name of the event that records the result of one tool call while other calls of the response are running. See
/// [`tool_done_event`].
pub const TOOL_DONE_EVENT: &str = "tool.done";

/// Key in the `meta` of a user message. Its value is the id of the entry that the message replaces in views. A hook can
/// replace a prompt after the prompt was recorded.
pub const REPLACES_KEY: &str = "replaces";

/// Key in the `meta` of a copied entry. Its value is the id of the source entry, which views no longer show. If an
/// interrupted turn resumes after another turn, bub copies its entries to the end of the tape.
pub const MOVED_KEY: &str = "moved";

/// Key in the `meta` of an entry. Its value tells whose text the entry contains. The tape does not interpret it.
pub const PROVENANCE_KEY: &str = "provenance";

/// A message in the format of the chat completions API.
pub type ChatMessage = Map<String, Value>;

/// The messages for one model call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct View {
    /// The messages.
    pub messages: Vec<ChatMessage>,
    /// The entries the messages come from, in order. With a custom [`Selector`](crate::Selector): the entries passed to
    /// it.
    pub entries: Vec<EntryId>,
    /// The entries as ranges of their first and last id, in order. A range covers only the entries that views show:
    /// anchors, messages, tool calls and tool results. So the ranges stay few in a long conversation.
    pub ranges: Vec<(EntryId, EntryId)>,
    /// The anchor that the view starts with, or `None` if it starts at the start of the tape.
    pub origin: Option<EntryId>,
    /// The distinct values of [`PROVENANCE_KEY`] in the `meta` of the entries.
    pub provenance: Vec<Value>,
    /// Whether the view shows media of earlier turns.
    pub shows_earlier_media: bool,
}

/// Options for building a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewOptions {
    /// The model that gets the view. The view includes the provider state of an entry (`meta.provider_state`) only if
    /// it comes from this model. The message has it under the key `provider_state`.
    pub model: Option<String>,
    /// The first entry of the running turn. The view includes all media from this entry on.
    pub turn_start: Option<EntryId>,
    /// How many media of earlier turns the view includes. A text marker replaces the others. By default, it
    /// includes none.
    pub media: MediaLimit,
    /// Maximum total size in bytes of carried entries, which are entries before the anchor that the anchor's state
    /// lists. The first user message among them is always included. The default is 256 KiB.
    pub carry_limit: usize,
}

impl Default for ViewOptions {
    fn default() -> Self {
        Self {
            model: None,
            turn_start: None,
            media: MediaLimit::NONE,
            carry_limit: 256 * 1024,
        }
    }
}

impl ViewOptions {
    /// Creates options for a view without media and provider state.
    pub fn new() -> Self {
        Self::default()
    }

    /// Includes the provider state that comes from this model.
    #[must_use]
    pub fn for_model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// Includes the media of the turn that starts with this entry.
    #[must_use]
    pub fn with_turn_start(mut self, first: EntryId) -> Self {
        self.turn_start = Some(first);
        self
    }

    /// Includes media of earlier turns.
    #[must_use]
    pub fn with_media(mut self, limit: MediaLimit) -> Self {
        self.media = limit;
        self
    }
}

/// Creates the event of a finished tool call, with the data `{call_id, result}`. Views use it only if the entry with
/// all results is missing.
pub fn tool_done_event(call_id: &str, result: impl Into<Value>) -> Entry {
    let data = crate::entry::json_object([("call_id", call_id.into()), ("result", result.into())]);
    Entry::event(TOOL_DONE_EVENT, Some(data.into())).exclude_from_context()
}

impl Tape {
    /// Builds a view with the tape's context.
    pub async fn view(&self, options: &ViewOptions) -> Result<View> {
        self.view_with_context(self.context(), options).await
    }

    /// Builds a view with another context.
    ///
    /// If the tape has no anchors, the view contains all of it.
    ///
    /// # Errors
    ///
    /// Fails with [`TapeError::NotFound`] if the context names an anchor that does not exist.
    pub async fn view_with_context(
        &self,
        context: &TapeContext,
        options: &ViewOptions,
    ) -> Result<View> {
        let mut conversation = Conversation::default();
        let (origin, entries) = self
            .select_entries(context, options, &mut conversation)
            .await?;
        conversation.add_entries(&entries);
        let mut provenance: Vec<Value> = Vec::new();
        for value in entries
            .iter()
            .filter_map(|entry| entry.meta.get(PROVENANCE_KEY))
        {
            if !provenance.contains(value) {
                provenance.push(value.clone());
            }
        }
        let mut builder = ViewBuilder::new(options.model.as_deref());
        let mut selected = entries;
        if let Some(select) = &context.select {
            selected.retain(Entry::is_in_context);
            for message in select(&selected) {
                builder.add_message(message, None);
            }
        } else {
            for entry in selected.drain(..) {
                // Stores may omit entries that views do not show, so count messages and not entries.
                if entry.kind == EntryKind::Anchor && builder.is_empty() {
                    builder.add_opening_anchor(&entry);
                } else {
                    builder.add_entry(entry);
                }
            }
        }
        let (messages, mut entries) = builder.finish();
        entries.extend(selected.iter().map(|entry| entry.id));
        Ok(View {
            messages,
            ranges: conversation.ranges(&entries, origin),
            entries,
            origin,
            provenance,
            shows_earlier_media: conversation.shows_earlier_media,
        })
    }

    /// Returns the id of the anchor that the view starts with, and the entries of the view: the anchor, the entries it
    /// carries and the entries after it.
    async fn select_entries(
        &self,
        context: &TapeContext,
        options: &ViewOptions,
        conversation: &mut Conversation,
    ) -> Result<(Option<EntryId>, Vec<Entry>)> {
        let mark = match &context.anchor {
            AnchorSelector::Last => self.anchor_marks(AnchorQuery::Latest(1)).await?.pop(),
            AnchorSelector::Named(name) => {
                let query = AnchorQuery::LatestNamed(name.clone());
                let mark = self.anchor_marks(query).await?.pop();
                Some(mark.ok_or_else(|| TapeError::anchor_not_found(name))?)
            }
            AnchorSelector::Whole => None,
        };
        let range = mark.as_ref().map_or(EntryRange::ALL, |mark| {
            EntryRange::starting_at(mark.position)
        });
        let mut stream = match context.select {
            Some(_) => self.store().read(self.name(), range),
            None => self
                .store()
                .read_filtered(self.name(), range, Arc::new(ViewLineFilter)),
        };
        let mut entries = Vec::new();
        while let Some(entry) = stream.try_next().await? {
            let is_first_anchor =
                entries.is_empty() && mark.is_some() && entry.kind == EntryKind::Anchor;
            let carried = if is_first_anchor {
                carry::fetch_carried_entries(self, &entry, options.carry_limit).await?
            } else {
                Vec::new()
            };
            for entry in [entry].into_iter().chain(carried) {
                if let Some(index) = referenced_entry(&entries, &entry, MOVED_KEY) {
                    conversation.hidden.push(entries.remove(index).id);
                }
                let replaced = referenced_entry(&entries, &entry, REPLACES_KEY);
                let replaced = replaced.filter(|_| entry.kind == EntryKind::Message);
                match replaced.and_then(|index| entries.get_mut(index)) {
                    Some(slot) => {
                        conversation.hidden.extend([slot.id, entry.id]);
                        *slot = entry;
                    }
                    None => entries.push(entry),
                }
            }
        }
        let origin = mark.map(|mark| mark.id);
        let blobs = self.store().blobs();
        conversation.shows_earlier_media =
            media::insert_media(&*blobs, &mut entries, origin, options).await;
        Ok((origin, entries))
    }
}

/// Returns the index in `entries` of the entry that `entry` refers to: `meta` of `entry` has its id under `key`. The
/// two entries must have the same kind and belong to the same run.
fn referenced_entry(entries: &[Entry], entry: &Entry, key: &str) -> Option<usize> {
    let id = EntryId::new(entry.meta.get(key)?.as_i64()?);
    let is_referenced = |other: &Entry| {
        other.id == id
            && other.kind == entry.kind
            && other.meta.get("run_id") == entry.meta.get("run_id")
    };
    entries.iter().rposition(is_referenced)
}
