//! The default mapping from entries to messages.

use std::collections::VecDeque;

use serde_json::Value;

use super::{ChatMessage, TOOL_DONE_EVENT, calls::PendingCalls, carry};
use crate::{Entry, EntryId, EntryKind, codec, entry::object};

/// Runs that overlap are few; calls that were left open by more than this are not going to be answered.
const MAX_OPEN_CALLS: usize = 16;
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Takes entries one by one and keeps calls and results together.
#[derive(Debug)]
pub(super) struct ViewBuilder<'a> {
    model: Option<&'a str>,
    items: Vec<ViewItem>,
    /// Where the calls stand that wait for results, oldest first.
    open: VecDeque<usize>,
    given: Vec<EntryId>,
}

#[derive(Debug)]
enum ViewItem {
    Message(ChatMessage, Option<EntryId>),
    Calls(ChatMessage, PendingCalls),
}

impl<'a> ViewBuilder<'a> {
    pub(super) fn new(model: Option<&'a str>) -> Self {
        Self {
            model,
            items: Vec::new(),
            open: VecDeque::new(),
            given: Vec::new(),
        }
    }

    /// Counts entries as used, whatever becomes of them.
    pub(super) fn mark_used(&mut self, entries: impl Iterator<Item = EntryId>) {
        self.given.extend(entries);
    }

    /// Adds an entry.
    pub(super) fn entry(&mut self, mut entry: Entry) {
        if entry.kind == EntryKind::Event && entry.name() == Some(TOOL_DONE_EVENT) {
            self.tool_done(&entry);
        }
        if !entry.in_context() {
            return;
        }
        match &entry.kind {
            EntryKind::Anchor => self
                .items
                .push(ViewItem::Message(anchor_message(&entry), Some(entry.id))),
            EntryKind::Message => {
                let payload = std::mem::take(&mut entry.payload);
                self.message(self.with_provider_state(payload, &entry), Some(&entry));
            }
            EntryKind::ToolCall => self.tool_call(&mut entry),
            EntryKind::ToolResult => self.tool_result(&mut entry),
            EntryKind::System | EntryKind::Event | EntryKind::Error | EntryKind::Other(_) => {}
        }
    }

    /// Adds a message as it is, unless no provider could take it.
    pub(super) fn message(&mut self, mut message: ChatMessage, entry: Option<&Entry>) {
        let Some(role) = message
            .get("role")
            .and_then(Value::as_str)
            .filter(|role| ROLES.contains(role))
        else {
            return;
        };
        if role == "tool" {
            return self.tool_message(&message, entry);
        }
        let calls = if role == "assistant" {
            message.shift_remove("tool_calls")
        } else {
            None
        };
        match calls.and_then(|calls| PendingCalls::new(calls, entry)) {
            Some(calls) => self.calls(calls, message, entry),
            None => self
                .items
                .push(ViewItem::Message(message, entry.map(|entry| entry.id))),
        }
    }

    /// The messages, and the entries they come from.
    pub(super) fn finish(self) -> (Vec<ChatMessage>, Vec<EntryId>) {
        let (mut messages, mut used) = (Vec::with_capacity(self.items.len()), Vec::new());
        for item in self.items {
            match item {
                ViewItem::Message(message, entry) => {
                    messages.push(message);
                    used.extend(entry);
                }
                ViewItem::Calls(message, calls) => {
                    calls.into_messages(message, &mut messages, &mut used);
                }
            }
        }
        (
            messages,
            if self.given.is_empty() {
                used
            } else {
                self.given
            },
        )
    }

    fn tool_call(&mut self, entry: &mut Entry) {
        let text = entry
            .payload
            .shift_remove("content")
            .filter(|content| !content.is_null());
        let message = object([
            ("role", "assistant".into()),
            ("content", text.unwrap_or_else(|| "".into())),
        ]);
        let calls = entry
            .payload
            .shift_remove("calls")
            .and_then(|calls| PendingCalls::new(calls, Some(entry)));
        if let Some(calls) = calls {
            self.calls(calls, self.with_provider_state(message, entry), Some(entry));
        }
    }

    fn calls(&mut self, calls: PendingCalls, message: ChatMessage, entry: Option<&Entry>) {
        self.close(entry);
        self.open.push_back(self.items.len());
        self.items.push(ViewItem::Calls(message, calls));
        if self.open.len() > MAX_OPEN_CALLS {
            self.open.pop_front();
        }
    }

    fn tool_result(&mut self, entry: &mut Entry) {
        let mut results = match entry.payload.shift_remove("results") {
            Some(Value::Array(results)) => results,
            _ => Vec::new(),
        };
        let named = entry.meta.get("call_ids").and_then(Value::as_array);
        self.try_attach(|calls| {
            let meant = named.map_or_else(|| calls.same_run(entry), |ids| calls.has_any(ids));
            if meant {
                calls.answer(std::mem::take(&mut results), entry.id);
            }
            meant
        });
    }

    fn tool_message(&mut self, message: &ChatMessage, entry: Option<&Entry>) {
        let Some(id) = message.get("tool_call_id").and_then(Value::as_str) else {
            return;
        };
        self.try_attach(|calls| {
            let taken = calls.answer_one(id, message);
            calls
                .entries
                .extend(entry.filter(|_| taken).map(|entry| entry.id));
            taken
        });
    }

    fn tool_done(&mut self, entry: &Entry) {
        let Some(data) = entry.data() else { return };
        let Some(id) = data.get("call_id").and_then(Value::as_str) else {
            return;
        };
        let Some(result) = data.get("result") else {
            return;
        };
        self.try_attach(|calls| calls.same_run(entry) && calls.finished(id, result, entry.id));
    }

    /// A run's next response means that the calls of its last one are over.
    fn close(&mut self, entry: Option<&Entry>) {
        self.try_attach(|calls| {
            calls.open = entry.is_some_and(|entry| !calls.same_run(entry));
            false
        });
    }

    /// Shows the calls that wait for results to `take`, latest first, until it takes one.
    fn try_attach(&mut self, mut take: impl FnMut(&mut PendingCalls) -> bool) {
        for index in self.open.iter().rev() {
            if calls_at(&mut self.items, *index).is_some_and(&mut take) {
                break;
            }
        }
        let items = &mut self.items;
        self.open
            .retain(|index| calls_at(items, *index).is_some_and(|calls| calls.open));
    }

    /// Signatures and the like mean something to the model they came from and are refused by others.
    fn with_provider_state(&self, mut message: ChatMessage, entry: &Entry) -> ChatMessage {
        let state = entry.meta.get("provider_state");
        let own = |state: &&Value| {
            self.model.is_some() && state.get("model").and_then(Value::as_str) == self.model
        };
        if let Some(state) = state.filter(own).and_then(|state| state.get("state")) {
            message.insert("provider_state".to_owned(), state.clone());
        }
        message
    }
}

fn calls_at(items: &mut [ViewItem], index: usize) -> Option<&mut PendingCalls> {
    match items.get_mut(index) {
        Some(ViewItem::Calls(_, calls)) => Some(calls),
        Some(ViewItem::Message(..)) | None => None,
    }
}

fn anchor_message(anchor: &Entry) -> ChatMessage {
    let state = codec::to_python_json(&carry::shown_state(anchor));
    let text = format!(
        "[Anchor created: {}]: {state}",
        anchor.name().unwrap_or_default()
    );
    object([("role", "assistant".into()), ("content", text.into())])
}
