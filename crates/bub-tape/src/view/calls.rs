//! The tool calls of one model response and their results.

use serde_json::{Map, Value};

use super::ChatMessage;
use crate::{Entry, EntryId, codec, entry::object};

/// What stands in for a result that is not on the tape.
pub const INTERRUPTED_RESULT: &str = "[interrupted, may have taken effect]";

/// One assistant message with calls, waiting for its results.
#[derive(Debug)]
pub(super) struct PendingCalls {
    slots: Vec<CallSlot>,
    run_id: Option<Value>,
    /// Entries whose content is in it.
    pub(super) entries: Vec<EntryId>,
    pub(super) open: bool,
}

#[derive(Debug)]
struct CallSlot {
    /// `None` when what stands on the tape names no tool: it is not shown, but its result keeps its place.
    call: Option<Map<String, Value>>,
    id: String,
    name: Option<Value>,
    result: Option<Value>,
    finished: Option<(Value, EntryId)>,
}

impl PendingCalls {
    /// `None` when none of them is a call.
    pub(super) fn new(calls: Value, entry: Option<&Entry>) -> Option<Self> {
        let Value::Array(calls) = calls else {
            return None;
        };
        let mut slots: Vec<CallSlot> = Vec::with_capacity(calls.len());
        for (index, call) in calls.into_iter().enumerate() {
            let taken = |id: &str| slots.iter().any(|slot| slot.id == id);
            let own = call.get("id").and_then(Value::as_str).unwrap_or_default();
            let id = if own.is_empty() || taken(own) {
                free_id(index, &taken)
            } else {
                own.to_owned()
            };
            slots.push(CallSlot::new(call, id));
        }
        slots.iter().any(|slot| slot.call.is_some()).then_some(())?;
        let run_id = entry.and_then(|entry| entry.meta.get("run_id").cloned());
        let entries = entry.map(|entry| entry.id).into_iter().collect();
        Some(Self {
            slots,
            run_id,
            entries,
            open: true,
        })
    }

    /// Whether an entry can belong to the same response: runs that overlap are told apart by their id.
    pub(super) fn same_run(&self, entry: &Entry) -> bool {
        match (&self.run_id, entry.meta.get("run_id")) {
            (Some(own), Some(other)) => own == other,
            _ => true,
        }
    }

    /// Whether a list of call ids speaks of these calls.
    pub(super) fn has_any(&self, ids: &[Value]) -> bool {
        ids.iter()
            .filter_map(Value::as_str)
            .any(|id| self.slots.iter().any(|slot| slot.id == id))
    }

    /// Takes the results, by position; what is missing or too much is no harm.
    pub(super) fn answer(&mut self, results: Vec<Value>, entry: EntryId) {
        for (slot, result) in self.slots.iter_mut().zip(results) {
            slot.result = Some(result);
        }
        self.entries.push(entry);
        self.open = false;
    }

    /// Takes one result by the id of its call; `false` when there is no such call without result.
    pub(super) fn answer_one(&mut self, id: &str, message: &ChatMessage) -> bool {
        let waiting = self
            .slots
            .iter_mut()
            .find(|slot| slot.id == id && slot.result.is_none());
        let Some(slot) = waiting else { return false };
        slot.result = Some(message.get("content").cloned().unwrap_or(Value::Null));
        self.open = self.slots.iter().any(|slot| slot.result.is_none());
        true
    }

    /// Remembers the result of a call that finished while others still ran.
    pub(super) fn finished(&mut self, id: &str, result: &Value, event: EntryId) -> bool {
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.id == id) else {
            return false;
        };
        slot.finished = Some((result.clone(), event));
        true
    }

    /// The assistant message with its calls, and one tool message for each of them.
    pub(super) fn into_messages(
        self,
        message: ChatMessage,
        messages: &mut Vec<ChatMessage>,
        entries: &mut Vec<EntryId>,
    ) {
        entries.extend(self.entries);
        let (mut calls, at) = (Vec::with_capacity(self.slots.len()), messages.len());
        messages.push(message);
        for mut slot in self.slots {
            let Some(call) = slot.call.take() else {
                continue;
            };
            calls.push(Value::Object(call));
            let content = match (slot.result, slot.finished) {
                (Some(result), _) => content(result),
                (None, Some((result, event))) => {
                    entries.push(event);
                    content(result)
                }
                (None, None) => INTERRUPTED_RESULT.into(),
            };
            let id = slot.id.into();
            let mut message = object([
                ("role", "tool".into()),
                ("content", content),
                ("tool_call_id", id),
            ]);
            message.extend(slot.name.map(|name| ("name".to_owned(), name)));
            messages.push(message);
        }
        if let Some(message) = messages.get_mut(at) {
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
            finished: None,
        }
    }
}

/// A name for a call that has none of its own, the same whenever the view is made.
fn free_id(index: usize, taken: &dyn Fn(&str) -> bool) -> String {
    let mut id = format!("call_{index}");
    while taken(&id) {
        id.push('_');
    }
    id
}

/// Results that are no text are shown as JSON.
fn content(result: Value) -> Value {
    match result {
        Value::String(_) => result,
        other => codec::to_python_json(&other).into(),
    }
}
