//! Stops a model that repeats the same tool calls.

use serde_json::{Value, json};

use super::calls::text_at;

/// How many equal calls with equal results in a row cause a warning. The warning is appended to the last result.
const WARN_AFTER_REPEATS: usize = 3;
/// How many equal calls in a row cause a refusal. The last of these calls does not run.
const REFUSE_AFTER_REPEATS: usize = 6;
/// How many equal calls in a row end the turn. The last of these calls does not run.
const END_AFTER_REPEATS: usize = 8;

/// Counts responses in a row with equal tool calls and equal results. The limits are high, because a model that waits
/// for a change also repeats calls.
#[derive(Debug, Default)]
pub(super) struct RepeatGuard {
    last: Option<(Value, Value)>,
    repeats: usize,
    refused: bool,
}

/// The action for the tool calls of a response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RepeatAction {
    /// Run the calls.
    Proceed,
    /// Do not run the calls, and return this text as the result of each call.
    Refuse(String),
    /// End the turn.
    EndTurn,
}

impl RepeatGuard {
    /// Decides whether the calls of a response may run.
    pub(super) fn check_calls(&mut self, calls: &[Value]) -> RepeatAction {
        let is_repeat = self
            .last
            .as_ref()
            .is_some_and(|(last, _)| *last == calls_signature(calls));
        if !is_repeat {
            *self = Self::default();
            return RepeatAction::Proceed;
        }
        if self.repeats + 1 >= END_AFTER_REPEATS {
            return RepeatAction::EndTurn;
        }
        if self.repeats + 1 >= REFUSE_AFTER_REPEATS {
            self.repeats += 1;
            self.refused = true;
            return RepeatAction::Refuse(format!(
                "[not run: this exact call was made {} times in a row with the same result. Do something else, or give \
                 your final answer.]",
                self.repeats
            ));
        }
        RepeatAction::Proceed
    }

    /// Records the calls of a response and their results. Returns a note for the model if equal calls had equal results
    /// several times in a row.
    pub(super) fn record_results(&mut self, calls: &[Value], results: &[Value]) -> Option<String> {
        if std::mem::take(&mut self.refused) {
            return None;
        }
        let latest = (calls_signature(calls), Value::from(results));
        self.repeats = if self.last.as_ref() == Some(&latest) {
            self.repeats + 1
        } else {
            1
        };
        self.last = Some(latest);
        (self.repeats >= WARN_AFTER_REPEATS).then(|| {
            format!(
                "\n[this is the same call with the same result {} times in a row]",
                self.repeats
            )
        })
    }
}

/// Returns the names and parsed arguments of the calls. Calls that differ only in ids or JSON formatting are equal.
fn calls_signature(calls: &[Value]) -> Value {
    let call_signature = |call: &Value| {
        let arguments = text_at(call, "/function/arguments");
        let parsed = serde_json::from_str::<Value>(arguments);
        let arguments = parsed.unwrap_or_else(|_| arguments.into());
        json!([call.pointer("/function/name"), arguments])
    };
    calls.iter().map(call_signature).collect()
}
