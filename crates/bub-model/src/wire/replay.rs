//! Data of an answer that the provider expects back in later requests, such as signed thinking, and the position of the
//! data in the answer.
//!
//! Providers accept signed thinking only at its original position between text and tool calls. A [`BlockOrder`] records
//! the order of thinking, text and calls in an answer. It stores thinking blocks in full, but text and calls only as
//! references, so that a tape does not store them twice. [`replay_pieces`] restores this order when an answer is sent
//! back.

use serde_json::{Value, json};

use crate::usage::object;

/// Records the order of text, tool calls and other blocks in an answer while it is decoded.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockOrder {
    steps: Vec<Value>,
    has_state: bool,
}

impl BlockOrder {
    /// Records `length` bytes of text. `mark` is a value that the provider attached to the text.
    pub(super) fn record_text(&mut self, length: usize, mark: Option<Value>) {
        if mark.is_none()
            && let Some(Value::Object(last)) = self.steps.last_mut()
            && last.len() == 1
            && let Some(count) = last.get_mut("text")
            && let Some(length_so_far) = count.as_u64()
        {
            *count = (length_so_far + length as u64).into();
            return;
        }
        self.push_step(("text", length), mark);
    }

    /// Records a tool call. `mark` is a value that the provider attached to the call.
    pub(super) fn record_call(&mut self, index: usize, mark: Option<Value>) {
        self.push_step(("call", index), mark);
    }

    /// Records a block that must be sent back unchanged.
    pub(super) fn record_block(&mut self, block: Value) {
        self.steps.push(object([("keep", Some(block))]));
        self.has_state = true;
    }

    /// Reserves a position for an incomplete block and returns the position.
    pub(super) fn reserve_block(&mut self) -> usize {
        self.steps.push(Value::Null);
        self.steps.len() - 1
    }

    /// Stores a block at its reserved position.
    pub(super) fn fill_block(&mut self, position: usize, block: Value) {
        if let Some(step) = self.steps.get_mut(position) {
            *step = object([("keep", Some(block))]);
            self.has_state = true;
        }
    }

    /// Returns the value for `provider_state`, if the answer contains anything to send back. `name` is the name of the
    /// wire format.
    pub(super) fn into_state(self, name: &str) -> Option<Value> {
        let steps = self.steps.into_iter().filter(|step| !step.is_null());
        self.has_state
            .then(|| json!({name: steps.collect::<Vec<_>>()}))
    }

    fn push_step(&mut self, (kind, value): (&str, usize), mark: Option<Value>) {
        self.has_state |= mark.is_some();
        self.steps
            .push(object([(kind, Some(value.into())), ("mark", mark)]));
    }
}

/// A piece of an assistant message: text, content parts, a tool call or another block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ReplayPiece<'a> {
    /// A piece of the text, with the value that the provider attached to it.
    Text(&'a str, Option<&'a Value>),
    /// Content that is a list of parts instead of a string.
    Parts(&'a Value),
    /// A tool call, with the value that the provider attached to it.
    Call(&'a Value, Option<&'a Value>),
    /// A block to send back unchanged.
    Kept(&'a Value),
}

/// Returns the pieces of an assistant message in the order in which the model produced them.
///
/// Uses the entry of the wire format `name` in `provider_state`. If the entry does not match the message, for example
/// because a hook changed the message, the blocks to send back unchanged come first.
pub(super) fn replay_pieces<'a>(message: &'a Value, name: &str) -> Vec<ReplayPiece<'a>> {
    let state = message.get("provider_state");
    let steps = list(state.and_then(|state| state.get(name)));
    pieces_in_recorded_order(message, steps)
        .unwrap_or_else(|| pieces_in_default_order(message, steps))
}

/// Adds the value that the provider attached to a piece to the encoded piece.
pub(super) fn with_mark(mut piece: Value, mark: Option<&Value>) -> Value {
    if let (Some(piece), Some(Value::Object(mark))) = (piece.as_object_mut(), mark) {
        piece.extend(mark.clone());
    }
    piece
}

/// Returns the tool calls of a message.
pub(super) fn tool_calls(message: &Value) -> &[Value] {
    list(message.get("tool_calls"))
}

fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn pieces_in_recorded_order<'a>(
    message: &'a Value,
    steps: &'a [Value],
) -> Option<Vec<ReplayPiece<'a>>> {
    let mut rest = match message.get("content") {
        None | Some(Value::Null) => "",
        Some(content) => content.as_str()?,
    };
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

fn pieces_in_default_order<'a>(message: &'a Value, steps: &'a [Value]) -> Vec<ReplayPiece<'a>> {
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
    let calls = tool_calls(message).iter();
    pieces.extend(calls.map(|call| ReplayPiece::Call(call, None)));
    pieces
}
