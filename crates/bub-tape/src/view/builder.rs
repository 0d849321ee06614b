//! Builds messages from entries, with the default mapping.

use std::collections::VecDeque;

use serde_json::Value;

use super::{ChatMessage, HandoffSlots, TOOL_DONE_EVENT, calls::PendingCalls, carry};
use crate::{Entry, EntryId, EntryKind, SESSION_START, codec, entry::json_object};

/// Maximum number of model responses whose tool calls wait for results at the same time. The tool calls of older
/// responses get no more results. Few runs overlap, so this is rare.
const MAX_OPEN_CALLS: usize = 16;
/// Keys in the state of an anchor with slots that are for users only: why bub handed off.
const HIDDEN_KEYS: [&str; 4] = ["reason", "error", "tokens", "window"];
/// The roles that providers accept.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Converts entries to messages one by one and pairs tool calls with their results.
#[derive(Debug)]
pub(super) struct ViewBuilder<'a> {
    model: Option<&'a str>,
    items: Vec<ViewItem>,
    /// Indexes in `items` of calls that wait for results, oldest first.
    open_calls: VecDeque<usize>,
}

/// A message, the entry it comes from, and its tool calls.
#[derive(Debug)]
struct ViewItem {
    message: ChatMessage,
    entry: Option<EntryId>,
    calls: Option<PendingCalls>,
}

impl<'a> ViewBuilder<'a> {
    pub(super) fn new(model: Option<&'a str>) -> Self {
        Self {
            model,
            items: Vec::new(),
            open_calls: VecDeque::new(),
        }
    }

    /// Returns whether no message was added yet.
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Adds the messages of an entry. Ignores entries that views do not show.
    pub(super) fn add_entry(&mut self, mut entry: Entry) {
        if entry.kind == EntryKind::Event && entry.name() == Some(TOOL_DONE_EVENT) {
            self.add_early_result(&entry);
        }
        if !entry.is_in_context() {
            return;
        }
        match &entry.kind {
            EntryKind::Anchor => self.push_item(anchor_message(&entry), Some(&entry), None),
            EntryKind::Message => {
                let payload = std::mem::take(&mut entry.payload);
                self.add_message(self.with_provider_state(payload, &entry), Some(&entry));
            }
            EntryKind::ToolCall => self.add_tool_call(&mut entry),
            EntryKind::ToolResult => self.add_tool_result(&mut entry),
            EntryKind::System | EntryKind::Event | EntryKind::Error | EntryKind::Other(_) => {}
        }
    }

    /// Adds the state of the anchor that opens the view, as context for the model. It is not an assistant message,
    /// because models imitate what they seem to have said. Adds nothing for an anchor that says nothing.
    pub(super) fn add_opening_anchor(&mut self, anchor: &Entry) {
        let message = opening_message(anchor).filter(|_| anchor.is_in_context());
        if let Some(message) = message {
            self.push_item(message, Some(anchor), None);
        }
    }

    /// Adds a message. Ignores messages that providers reject: those with an unknown role, and results without a call.
    pub(super) fn add_message(&mut self, mut message: ChatMessage, entry: Option<&Entry>) {
        let Some(role) = message
            .get("role")
            .and_then(Value::as_str)
            .filter(|role| ROLES.contains(role))
        else {
            return;
        };
        if role == "tool" {
            return self.add_tool_message(&message, entry);
        }
        let calls = if role == "assistant" {
            message.shift_remove("tool_calls")
        } else {
            None
        };
        match calls.and_then(|calls| PendingCalls::new(calls, entry)) {
            Some(calls) => self.add_pending_calls(calls, message, entry),
            None => self.push_item(message, entry, None),
        }
    }

    fn push_item(
        &mut self,
        message: ChatMessage,
        entry: Option<&Entry>,
        calls: Option<PendingCalls>,
    ) {
        self.items.push(ViewItem {
            message,
            entry: entry.map(|entry| entry.id),
            calls,
        });
    }

    /// Returns the messages and the entries they come from.
    pub(super) fn finish(self) -> (Vec<ChatMessage>, Vec<EntryId>) {
        let (mut messages, mut used) = (Vec::with_capacity(self.items.len()), Vec::new());
        for item in self.items {
            used.extend(item.entry);
            match item.calls {
                Some(calls) => calls.append_messages(item.message, &mut messages, &mut used),
                None => messages.push(item.message),
            }
        }
        (messages, used)
    }

    fn add_tool_call(&mut self, entry: &mut Entry) {
        let text = entry
            .payload
            .shift_remove("content")
            .filter(|content| !content.is_null());
        let message = json_object([
            ("role", "assistant".into()),
            ("content", text.unwrap_or_else(|| "".into())),
        ]);
        let calls = entry
            .payload
            .shift_remove("calls")
            .and_then(|calls| PendingCalls::new(calls, Some(entry)));
        if let Some(calls) = calls {
            self.add_pending_calls(calls, self.with_provider_state(message, entry), Some(entry));
        }
    }

    fn add_pending_calls(
        &mut self,
        calls: PendingCalls,
        message: ChatMessage,
        entry: Option<&Entry>,
    ) {
        self.close_open_calls(entry);
        self.open_calls.push_back(self.items.len());
        self.push_item(message, entry, Some(calls));
        if self.open_calls.len() > MAX_OPEN_CALLS {
            self.open_calls.pop_front();
        }
    }

    fn add_tool_result(&mut self, entry: &mut Entry) {
        let mut results = match entry.payload.shift_remove("results") {
            Some(Value::Array(results)) => results,
            _ => Vec::new(),
        };
        let named = entry.meta.get("call_ids").and_then(Value::as_array);
        self.update_open_calls(|calls| {
            let matches =
                named.map_or_else(|| calls.is_same_run(entry), |ids| calls.has_any_call(ids));
            if matches {
                calls.set_results(std::mem::take(&mut results), entry.id);
            }
            matches
        });
    }

    fn add_tool_message(&mut self, message: &ChatMessage, entry: Option<&Entry>) {
        let Some(id) = message.get("tool_call_id").and_then(Value::as_str) else {
            return;
        };
        self.update_open_calls(|calls| {
            let accepted = calls.set_result(id, message);
            calls
                .entries
                .extend(entry.filter(|_| accepted).map(|entry| entry.id));
            accepted
        });
    }

    fn add_early_result(&mut self, entry: &Entry) {
        let result = entry
            .data()
            .and_then(|data| Some((data.get("call_id")?.as_str()?, data.get("result")?)));
        if let Some((id, result)) = result {
            self.update_open_calls(|calls| {
                calls.is_same_run(entry) && calls.set_early_result(id, result, entry.id)
            });
        }
    }

    /// Closes the open tool calls of the run that `entry` belongs to: the run has a new model response, so its earlier
    /// calls get no more results. Without an entry, closes all open tool calls.
    fn close_open_calls(&mut self, entry: Option<&Entry>) {
        self.update_open_calls(|calls| {
            calls.is_open = entry.is_some_and(|entry| !calls.is_same_run(entry));
            false
        });
    }

    /// Calls `update` with the open tool calls of each model response, latest response first, until `update` returns
    /// `true`. Then removes closed calls from `open_calls`.
    fn update_open_calls(&mut self, mut update: impl FnMut(&mut PendingCalls) -> bool) {
        let items = &mut self.items;
        for index in self.open_calls.iter().rev() {
            let calls = items.get_mut(*index).and_then(|item| item.calls.as_mut());
            if calls.is_some_and(&mut update) {
                break;
            }
        }
        self.open_calls.retain(|index| {
            let calls = items.get(*index).and_then(|item| item.calls.as_ref());
            calls.is_some_and(|calls| calls.is_open)
        });
    }

    /// Adds the provider state of the entry, such as signatures, to the message if it comes from the model of this
    /// view. Other models reject it.
    fn with_provider_state(&self, mut message: ChatMessage, entry: &Entry) -> ChatMessage {
        let state = entry.meta.get("provider_state").filter(|state| {
            self.model.is_some() && state.get("model").and_then(Value::as_str) == self.model
        });
        let state = state.and_then(|state| state.get("state"));
        message.extend(state.map(|state| ("provider_state".to_owned(), state.clone())));
        message
    }
}

/// Returns the message for the anchor that opens a view: its summary, its slots, then the rest of its state as JSON.
fn opening_message(anchor: &Entry) -> Option<ChatMessage> {
    let name = anchor.name().unwrap_or_default();
    let mut state = carry::visible_state(anchor);
    let slots = HandoffSlots::from_state(&state);
    let summary = state.as_object_mut().and_then(|state| {
        if slots.is_some() {
            // The error of the provider and the size of the window do not help the model.
            state.retain(|key, _| {
                !HandoffSlots::KEYS.contains(&&**key) && !HIDDEN_KEYS.contains(&&**key)
            });
        }
        state.shift_remove("summary")
    });
    let text = slots.as_ref().map(|slots| {
        let carried = carry::carried_ids(anchor).unwrap_or_default();
        let instruction = slots.source.instruction;
        slots.to_text(!instruction.is_some_and(|id| carried.contains(&id)))
    });
    // The state of the first anchor of a tape is fixed and does not help the model.
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Object(map) => map.is_empty() || name == SESSION_START,
        _ => false,
    };
    let text = text.map_or(Value::Null, Value::String);
    let hint = slots.map_or(Value::Null, |slots| slots.lookup_hint().into());
    let parts = [summary.unwrap_or_default(), text, state, hint].into_iter();
    let parts = parts.filter(|part| !is_empty(part)).map(|part| match part {
        Value::String(text) => text.trim().to_owned(),
        part => codec::to_python_json(&part),
    });
    let parts: Vec<String> = parts.collect();
    let text = format!(
        "<handoff name=\"{name}\">\n{}\n</handoff>",
        parts.join("\n")
    );
    (!parts.is_empty()).then(|| json_object([("role", "user".into()), ("content", text.into())]))
}

fn anchor_message(anchor: &Entry) -> ChatMessage {
    let state = codec::to_python_json(&carry::visible_state(anchor));
    let text = format!(
        "[Anchor created: {}]: {state}",
        anchor.name().unwrap_or_default()
    );
    json_object([("role", "assistant".into()), ("content", text.into())])
}
