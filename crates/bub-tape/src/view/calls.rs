//! Pairs the tool calls of one model response with their results.

use serde_json::{Map, Value};

use super::ChatMessage;
use crate::{Entry, EntryId, codec, entry::json_object};

/// The result that a view shows for a tool call without a result on the tape.
pub const INTERRUPTED_RESULT: &str =
    "[interrupted: outcome unknown; check whether it took effect before repeating]";

/// The tool calls of one assistant message and the results found so far.
#[derive(Debug)]
pub(super) struct PendingCalls {
    slots: Vec<CallSlot>,
    run_id: Option<Value>,
    /// Entries that the results come from.
    pub(super) entries: Vec<EntryId>,
    /// Whether results may still follow.
    pub(super) is_open: bool,
}

#[derive(Debug)]
struct CallSlot {
    /// The call, or `None` if it names no tool. Views do not show such a call, but it counts when results are assigned
    /// by position.
    call: Option<Map<String, Value>>,
    id: String,
    name: Option<Value>,
    result: Option<Value>,
    /// The result from a [`TOOL_DONE_EVENT`](super::TOOL_DONE_EVENT), and the id of that event.
    early_result: Option<(Value, EntryId)>,
}

impl PendingCalls {
    /// Creates the pending calls of a message. Returns `None` if `calls` contains no valid call.
    pub(super) fn new(calls: Value, entry: Option<&Entry>) -> Option<Self> {
        let Value::Array(calls) = calls else {
            return None;
        };
        let mut slots: Vec<CallSlot> = Vec::with_capacity(calls.len());
        for (index, call) in calls.into_iter().enumerate() {
            let is_taken = |id: &str| slots.iter().any(|slot| slot.id == id);
            let call_id = call.get("id").and_then(Value::as_str).unwrap_or_default();
            let id = if call_id.is_empty() || is_taken(call_id) {
                unused_call_id(index, &is_taken)
            } else {
                call_id.to_owned()
            };
            slots.push(CallSlot::new(call, id));
        }
        slots.iter().any(|slot| slot.call.is_some()).then_some(())?;
        Some(Self {
            slots,
            run_id: entry.and_then(|entry| entry.meta.get("run_id").cloned()),
            entries: Vec::new(),
            is_open: true,
        })
    }

    /// Returns whether an entry can belong to the run of these calls. Overlapping runs have different run ids.
    pub(super) fn is_same_run(&self, entry: &Entry) -> bool {
        match (&self.run_id, entry.meta.get("run_id")) {
            (Some(run_id), Some(other)) => run_id == other,
            _ => true,
        }
    }

    /// Returns whether a list of call ids contains the id of any of these calls.
    pub(super) fn has_any_call(&self, ids: &[Value]) -> bool {
        ids.iter()
            .filter_map(Value::as_str)
            .any(|id| self.slots.iter().any(|slot| slot.id == id))
    }

    /// Sets the results by position. Ignores missing and surplus results.
    pub(super) fn set_results(&mut self, results: Vec<Value>, entry: EntryId) {
        for (slot, result) in self.slots.iter_mut().zip(results) {
            slot.result = Some(result);
        }
        self.entries.push(entry);
        self.is_open = false;
    }

    /// Sets one result by the id of its call. Returns `false` if there is no such call or it already has a result.
    pub(super) fn set_result(&mut self, id: &str, message: &ChatMessage) -> bool {
        let mut slots = self.slots.iter_mut();
        let pending = slots.find(|slot| slot.id == id && slot.result.is_none());
        let Some(slot) = pending else { return false };
        slot.result = Some(message.get("content").cloned().unwrap_or(Value::Null));
        self.is_open = self.slots.iter().any(|slot| slot.result.is_none());
        true
    }

    /// Sets the result of a call that finished while other calls of the response were running. Returns `false` if the
    /// id is unknown.
    pub(super) fn set_early_result(&mut self, id: &str, result: &Value, event: EntryId) -> bool {
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.id == id) else {
            return false;
        };
        slot.early_result = Some((result.clone(), event));
        true
    }

    /// Appends the assistant message with its calls, followed by one tool message per call.
    pub(super) fn append_messages(
        self,
        message: ChatMessage,
        messages: &mut Vec<ChatMessage>,
        entries: &mut Vec<EntryId>,
    ) {
        entries.extend(self.entries);
        let (mut calls, index) = (Vec::with_capacity(self.slots.len()), messages.len());
        messages.push(message);
        for mut slot in self.slots {
            let Some(call) = slot.call.take() else {
                continue;
            };
            calls.push(Value::Object(call));
            let content = match (slot.result, slot.early_result) {
                (Some(result), _) => result_content(result),
                (None, Some((result, event))) => {
                    entries.push(event);
                    result_content(result)
                }
                (None, None) => INTERRUPTED_RESULT.into(),
            };
            let id = slot.id.into();
            let mut message = json_object([
                ("role", "tool".into()),
                ("content", content),
                ("tool_call_id", id),
            ]);
            message.extend(slot.name.map(|name| ("name".to_owned(), name)));
            messages.push(message);
        }
        if let Some(message) = messages.get_mut(index) {
            message.insert("tool_calls".to_owned(), calls.into());
        }
    }
}

impl CallSlot {
    fn new(call: Value, id: String) -> Self {
        let function = call.get("function").or_else(|| call.get("custom"));
        let name = function
            .and_then(|function| function.get("name"))
            .filter(|name| name.is_string())
            .cloned();
        let mut call = match call {
            Value::Object(call) if name.is_some() => Some(call),
            _ => None,
        };
        if let Some(call) = &mut call {
            call.insert("id".to_owned(), id.clone().into());
        }
        Self {
            call,
            id,
            name,
            result: None,
            early_result: None,
        }
    }
}

/// Returns an unused id for a call that has no id or the id of another call. The result is the same in every view of
/// the tape.
fn unused_call_id(index: usize, is_taken: &dyn Fn(&str) -> bool) -> String {
    let mut id = format!("call_{index}");
    while is_taken(&id) {
        id.push('_');
    }
    id
}

/// Converts a result to message content. Results that are not strings are shown as JSON.
fn result_content(result: Value) -> Value {
    match result {
        Value::String(_) => result,
        other => codec::to_python_json(&other).into(),
    }
}
