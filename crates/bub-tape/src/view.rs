//! What a model is shown of a tape.
//!
//! A view opens with the anchor it starts from, goes on with what that anchor carries over, and ends with
//! everything behind it. It is made anew for every call, from those entries alone: its cost does not depend on
//! how long the tape is. Whatever happened to the tape, the messages are ones a provider accepts: every tool call has
//! exactly one result right behind it, and no result stands alone.

mod builder;
mod calls;
mod carry;
mod line_filter;
mod media;

use std::sync::Arc;

use futures_util::TryStreamExt as _;
use serde_json::{Map, Value};

pub use self::calls::INTERRUPTED_RESULT;
use self::{builder::ViewBuilder, line_filter::ViewLineFilter};
use crate::{
    AnchorQuery, AnchorSelector, Entry, EntryId, EntryKind, EntryRange, Result, Tape, TapeContext,
    TapeError,
};

/// The event that records the result of one call while others of the same response still run; see [`tool_done`].
pub const TOOL_DONE_EVENT: &str = "tool.done";

/// The line put before a view that would open with an assistant message, for those who refuse that.
pub const OPENING_LINE: &str = "Continue from the state below.";

/// The key in the `meta` of a user message that names the entry in whose place it is shown: a question that a hook
/// replaced after it was recorded.
pub const REPLACES_KEY: &str = "replaces";

/// The key in the `meta` of a user message that names its earlier entry, which views do not show any more: the turn of
/// the message was interrupted and resumed after another turn.
pub const MOVED_KEY: &str = "moved";

/// A message in the shape of the chat API.
pub type ChatMessage = Map<String, Value>;

/// The messages for a model and where they come from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct View {
    /// What the model is shown.
    pub messages: Vec<ChatMessage>,
    /// The entries that are in it, in its order. With a selector of one's own: the entries it was given.
    pub entries: Vec<EntryId>,
    /// The anchor it starts from.
    pub origin: Option<EntryId>,
}

/// What a view depends on beside the tape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewOptions {
    /// The model that will see it: what a provider wants back (`meta.provider_state`) is passed on, as `provider_state` of the
    /// message, only to the model it came from.
    pub model: Option<String>,
    /// The first entry of the running turn: media are shown from there on. Without it none are.
    pub turn_start: Option<EntryId>,
    /// Puts [`OPENING_LINE`] before a view that would open with an assistant message.
    pub open_with_user: bool,
    /// How many bytes of carried entries are shown at most. The turn's first user message is shown in any case.
    pub carry_limit: usize,
}

impl Default for ViewOptions {
    fn default() -> Self {
        Self {
            model: None,
            turn_start: None,
            open_with_user: false,
            carry_limit: 256 * 1024,
        }
    }
}

impl ViewOptions {
    /// No media, no provider state.
    pub fn new() -> Self {
        Self::default()
    }

    /// For that model.
    #[must_use]
    pub fn for_model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// In the turn that began with that entry.
    #[must_use]
    pub fn for_turn_from(mut self, first: EntryId) -> Self {
        self.turn_start = Some(first);
        self
    }

    /// Never opening with an assistant message.
    #[must_use]
    pub fn open_with_user_message(mut self) -> Self {
        self.open_with_user = true;
        self
    }
}

/// The event of a finished call, `{call_id, result}`, outside the context: a view uses it when the entry with all results is
/// missing.
pub fn tool_done(call_id: &str, result: impl Into<Value>) -> Entry {
    let data = crate::entry::object([("call_id", call_id.into()), ("result", result.into())]);
    Entry::event(TOOL_DONE_EVENT, Some(data.into())).outside_context()
}

impl Tape {
    /// What a model is shown of the tape, by the tape's own context.
    pub async fn view(&self, options: &ViewOptions) -> Result<View> {
        self.view_with_context(self.context(), options).await
    }

    /// What a model is shown of the tape, by another context.
    ///
    /// A tape without anchors is shown whole; a named anchor that is not there is an error.
    pub async fn view_with_context(
        &self,
        context: &TapeContext,
        options: &ViewOptions,
    ) -> Result<View> {
        let (origin, entries) = self.selected_entries(context, options).await?;
        let mut builder = ViewBuilder::new(options.model.as_deref());
        match &context.select {
            None => entries.into_iter().for_each(|entry| builder.entry(entry)),
            Some(select) => {
                let shown: Vec<Entry> = entries.into_iter().filter(Entry::in_context).collect();
                builder.mark_used(shown.iter().map(|entry| entry.id));
                for message in select(&shown) {
                    builder.message(message, None);
                }
            }
        }
        let (mut messages, entries) = builder.finish();
        if options.open_with_user {
            open_with_user(&mut messages);
        }
        Ok(View {
            messages,
            entries,
            origin,
        })
    }

    /// The anchor, what it carries, and what follows it.
    async fn selected_entries(
        &self,
        context: &TapeContext,
        options: &ViewOptions,
    ) -> Result<(Option<EntryId>, Vec<Entry>)> {
        let search = match &context.anchor {
            AnchorSelector::Last => Some(AnchorQuery::Latest(1)),
            AnchorSelector::Named(name) => Some(AnchorQuery::LatestNamed(name.clone())),
            AnchorSelector::Whole => None,
        };
        let mark = match search {
            Some(search) => self.marks(search).await?.pop(),
            None => None,
        };
        if let (AnchorSelector::Named(name), None) = (&context.anchor, &mark) {
            return Err(TapeError::no_anchor(name));
        }
        let span = mark
            .as_ref()
            .map_or(EntryRange::ALL, |mark| EntryRange::from(mark.position));
        let mut stream = match context.select {
            Some(_) => self.store().read(self.name(), span),
            None => self
                .store()
                .read_filtered(self.name(), span, Arc::new(ViewLineFilter)),
        };
        let blobs = self.store().blobs();
        let mut entries = Vec::new();
        while let Some(entry) = stream.try_next().await? {
            let first = entries.is_empty() && mark.is_some() && entry.kind == EntryKind::Anchor;
            let carried = if first {
                carry::carried(self, &entry, options.carry_limit).await?
            } else {
                Vec::new()
            };
            for entry in [entry].into_iter().chain(carried) {
                let entry = media::for_turn(&*blobs, entry, options.turn_start).await?;
                if let Some(at) = earlier_message(&entries, &entry, MOVED_KEY) {
                    entries.remove(at);
                }
                let replaced = earlier_message(&entries, &entry, REPLACES_KEY);
                match replaced.and_then(|at| entries.get_mut(at)) {
                    Some(place) => *place = entry,
                    None => entries.push(entry),
                }
            }
        }
        Ok((mark.map(|mark| mark.id), entries))
    }
}

/// The index of the message of the same run that the `meta` of this one names.
fn earlier_message(entries: &[Entry], entry: &Entry, key: &str) -> Option<usize> {
    let id = EntryId::new(entry.meta.get(key)?.as_i64()?);
    let is_meant = |other: &Entry| {
        other.id == id
            && other.kind == EntryKind::Message
            && other.meta.get("run_id") == entry.meta.get("run_id")
    };
    entries
        .iter()
        .rposition(is_meant)
        .filter(|_| entry.kind == EntryKind::Message)
}

fn open_with_user(messages: &mut Vec<ChatMessage>) {
    let is = |message: &ChatMessage, roles: &[&str]| {
        message
            .get("role")
            .and_then(Value::as_str)
            .is_some_and(|role| roles.contains(&role))
    };
    let opening = messages
        .iter()
        .position(|message| !is(message, &["system", "developer"]));
    if let Some(at) = opening.filter(|at| {
        messages
            .get(*at)
            .is_some_and(|message| !is(message, &["user"]))
    }) {
        messages.insert(
            at,
            crate::entry::object([("role", "user".into()), ("content", OPENING_LINE.into())]),
        );
    }
}
