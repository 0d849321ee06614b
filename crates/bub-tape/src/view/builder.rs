//! The default mapping from entries to messages.

use std::collections::VecDeque;

use serde_json::Value;

use super::{Message, TOOL_DONE, calls::Calls, carry};
use crate::{Entry, EntryId, Kind, codec, entry::object};

/// Runs that overlap are few; calls that were left open by more than this are not going to be answered.
const MAX_OPEN: usize = 16;
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Takes entries one by one and keeps calls and results together.
#[derive(Debug)]
pub(super) struct Builder<'a> {
    model: Option<&'a str>,
    items: Vec<Item>,
    /// Where the calls stand that wait for results, oldest first.
    open: VecDeque<usize>,
    given: Vec<EntryId>,
}

#[derive(Debug)]
enum Item {
    Message(Message, Option<EntryId>),
    Calls(Message, Calls),
}

impl<'a> Builder<'a> {
    pub(super) fn new(model: Option<&'a str>) -> Self {
        Self {
            model,
            items: Vec::new(),
            open: VecDeque::new(),
            given: Vec::new(),
        }
    }

    /// Counts entries as used, whatever becomes of them.
    pub(super) fn uses(&mut self, entries: impl Iterator<Item = EntryId>) {
        self.given.extend(entries);
    }

    /// Adds an entry.
    pub(super) fn entry(&mut self, mut entry: Entry) {
        if entry.kind == Kind::Event && entry.name() == Some(TOOL_DONE) {
            self.tool_done(&entry);
        }
        if !entry.in_context() {
            return;
        }
        match &entry.kind {
            Kind::Anchor => self
                .items
                .push(Item::Message(anchor_message(&entry), Some(entry.id))),
            Kind::Message => {
                let payload = std::mem::take(&mut entry.payload);
                self.message(self.with_provider_state(payload, &entry), Some(&entry));
            }
            Kind::ToolCall => self.tool_call(&mut entry),
            Kind::ToolResult => self.tool_result(&mut entry),
            Kind::System | Kind::Event | Kind::Error | Kind::Other(_) => {}
        }
    }

    /// Adds a message as it is, unless no provider could take it.
    pub(super) fn message(&mut self, mut message: Message, entry: Option<&Entry>) {
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
        match calls.and_then(|calls| Calls::new(calls, entry)) {
            Some(calls) => self.calls(calls, message, entry),
            None => self
                .items
                .push(Item::Message(message, entry.map(|entry| entry.id))),
        }
    }

    /// The messages, and the entries they come from.
    pub(super) fn finish(self) -> (Vec<Message>, Vec<EntryId>) {
        let (mut messages, mut used) = (Vec::with_capacity(self.items.len()), Vec::new());
        for item in self.items {
            match item {
                Item::Message(message, entry) => {
                    messages.push(message);
                    used.extend(entry);
                }
                Item::Calls(message, calls) => {
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
            .and_then(|calls| Calls::new(calls, Some(entry)));
        if let Some(calls) = calls {
            self.calls(calls, self.with_provider_state(message, entry), Some(entry));
        }
    }

    fn calls(&mut self, calls: Calls, message: Message, entry: Option<&Entry>) {
        self.close(entry);
        self.open.push_back(self.items.len());
        self.items.push(Item::Calls(message, calls));
        if self.open.len() > MAX_OPEN {
            self.open.pop_front();
        }
    }

    fn tool_result(&mut self, entry: &mut Entry) {
        let mut results = match entry.payload.shift_remove("results") {
            Some(Value::Array(results)) => results,
            _ => Vec::new(),
        };
        let named = entry.meta.get("call_ids").and_then(Value::as_array);
        self.offer(|calls| {
            let meant = named.map_or_else(|| calls.same_run(entry), |ids| calls.has_any(ids));
            if meant {
                calls.answer(std::mem::take(&mut results), entry.id);
            }
            meant
        });
    }

    fn tool_message(&mut self, message: &Message, entry: Option<&Entry>) {
        let Some(id) = message.get("tool_call_id").and_then(Value::as_str) else {
            return;
        };
        self.offer(|calls| {
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
        self.offer(|calls| calls.same_run(entry) && calls.finished(id, result, entry.id));
    }

    /// A run's next response means that the calls of its last one are over.
    fn close(&mut self, entry: Option<&Entry>) {
        self.offer(|calls| {
            calls.open = entry.is_some_and(|entry| !calls.same_run(entry));
            false
        });
    }

    /// Shows the calls that wait for results to `take`, latest first, until it takes one.
    fn offer(&mut self, mut take: impl FnMut(&mut Calls) -> bool) {
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
    fn with_provider_state(&self, mut message: Message, entry: &Entry) -> Message {
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

fn calls_at(items: &mut [Item], index: usize) -> Option<&mut Calls> {
    match items.get_mut(index) {
        Some(Item::Calls(_, calls)) => Some(calls),
        Some(Item::Message(..)) | None => None,
    }
}

fn anchor_message(anchor: &Entry) -> Message {
    let state = codec::to_python_json(&carry::shown_state(anchor));
    let text = format!(
        "[Anchor created: {}]: {state}",
        anchor.name().unwrap_or_default()
    );
    object([("role", "assistant".into()), ("content", text.into())])
}
