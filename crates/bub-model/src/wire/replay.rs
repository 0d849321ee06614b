//! What a provider wants back, and where in the answer it stood.
//!
//! Signed thinking is only accepted in its old place between text and tool calls. A [`BlockOrder`] notes
//! the order in which an answer came: kept blocks in full, text and calls only as references, so that
//! a tape does not store them twice. [`pieces`] puts an assistant message back into that order.

use serde_json::{Map, Value, json};

/// Notes the order of an answer while it is decoded.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockOrder {
    steps: Vec<Value>,
    worth_keeping: bool,
}

impl BlockOrder {
    /// `length` bytes of text came; a mark is something the provider attached to them.
    pub(super) fn text(&mut self, length: usize, mark: Option<Value>) {
        if mark.is_none()
            && let Some(Value::Object(last)) = self.steps.last_mut()
            && last.len() == 1
            && let Some(count) = last.get_mut("text")
            && let Some(so_far) = count.as_u64()
        {
            *count = (so_far + length as u64).into();
            return;
        }
        self.step(json!({"text": length}), mark);
    }

    /// The next tool call came.
    pub(super) fn call(&mut self, index: usize, mark: Option<Value>) {
        self.step(json!({"call": index}), mark);
    }

    /// A block came that is to be sent back as it is.
    pub(super) fn keep(&mut self, block: Value) {
        self.steps.push(kept(block));
        self.worth_keeping = true;
    }

    /// Holds a place for a block that has only begun.
    pub(super) fn reserve(&mut self) -> usize {
        self.steps.push(Value::Null);
        self.steps.len() - 1
    }

    /// The block for which a place was held.
    pub(super) fn fill(&mut self, place: usize, block: Value) {
        if let Some(step) = self.steps.get_mut(place) {
            *step = kept(block);
            self.worth_keeping = true;
        }
    }

    /// The provider state, when there is anything to send back.
    pub(super) fn into_state(self, name: &str) -> Option<Value> {
        let steps = self
            .steps
            .into_iter()
            .filter(|step| !step.is_null())
            .collect();
        let state = Map::from_iter([(name.to_owned(), Value::Array(steps))]);
        self.worth_keeping.then_some(Value::Object(state))
    }

    fn step(&mut self, mut step: Value, mark: Option<Value>) {
        if let (Some(mark), Some(step)) = (mark, step.as_object_mut()) {
            step.insert("mark".into(), mark);
            self.worth_keeping = true;
        }
        self.steps.push(step);
    }
}

fn kept(block: Value) -> Value {
    Value::Object(Map::from_iter([("keep".to_owned(), block)]))
}

/// A part of an assistant message, in the order in which the model produced it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ReplayPiece<'a> {
    /// Some of the text, with what the provider attached to it.
    Text(&'a str, Option<&'a Value>),
    /// Content that is not a string: a list of parts.
    Parts(&'a Value),
    /// A tool call, with what the provider attached to it.
    Call(&'a Value, Option<&'a Value>),
    /// A block to send back as it is.
    Kept(&'a Value),
}

/// The pieces of an assistant message. State of another format is ignored; state that no longer fits
/// the message (a hook may have changed it) gives its kept blocks first and the rest after them.
pub(super) fn pieces<'a>(message: &'a Value, name: &str) -> Vec<ReplayPiece<'a>> {
    let steps = message
        .get("provider_state")
        .and_then(|state| state.get(name)?.as_array())
        .map(Vec::as_slice)
        .unwrap_or_default();
    in_old_order(message, steps).unwrap_or_else(|| in_usual_order(message, steps))
}

/// The tool calls of a message.
pub(super) fn tool_calls(message: &Value) -> &[Value] {
    message
        .get("tool_calls")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

fn in_old_order<'a>(message: &'a Value, steps: &'a [Value]) -> Option<Vec<ReplayPiece<'a>>> {
    let mut rest = message
        .get("content")
        .map_or(Some(""), |content| match content {
            Value::Null => Some(""),
            other => other.as_str(),
        })?;
    let mut calls = tool_calls(message).iter();
    let mut pieces = Vec::with_capacity(steps.len());
    for step in steps {
        let mark = step.get("mark");
        if let Some(block) = step.get("keep") {
            pieces.push(ReplayPiece::Kept(block));
        } else if step.get("call").is_some() {
            pieces.push(ReplayPiece::Call(calls.next()?, mark));
        } else {
            let length = usize::try_from(step.get("text")?.as_u64()?).ok()?;
            let (text, after) = rest.split_at_checked(length)?;
            rest = after;
            pieces.push(ReplayPiece::Text(text, mark));
        }
    }
    (!steps.is_empty() && rest.is_empty() && calls.next().is_none()).then_some(pieces)
}

fn in_usual_order<'a>(message: &'a Value, steps: &'a [Value]) -> Vec<ReplayPiece<'a>> {
    let mut pieces: Vec<_> = steps
        .iter()
        .filter_map(|step| step.get("keep"))
        .map(ReplayPiece::Kept)
        .collect();
    match message.get("content") {
        Some(Value::String(text)) => pieces.push(ReplayPiece::Text(text, None)),
        Some(content @ Value::Array(_)) => pieces.push(ReplayPiece::Parts(content)),
        _ => {}
    }
    pieces.extend(
        tool_calls(message)
            .iter()
            .map(|call| ReplayPiece::Call(call, None)),
    );
    pieces
}
