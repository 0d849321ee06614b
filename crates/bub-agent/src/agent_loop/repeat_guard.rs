//! Stops a model that makes the same call again and again.

use serde_json::Value;

/// From so many equal calls with equal results on, the model is told.
const WARN_AFTER_REPEATS: usize = 3;
/// From so many on, the call is not made.
const REFUSE_AFTER_REPEATS: usize = 6;
/// From so many on, the turn ends.
const END_AFTER_REPEATS: usize = 8;

/// Counts equal responses in a row. Waiting for something looks like this too, so it is patient.
#[derive(Debug, Default)]
pub(super) struct RepeatGuard {
    last: Option<(Value, Value)>,
    repeats: usize,
    refused: bool,
}

/// What to do about a response's calls.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RepeatAction {
    /// Make them.
    Proceed,
    /// Answer with this in place of each call.
    Refuse(String),
    /// End the turn.
    EndTurn,
}

impl RepeatGuard {
    /// Looks at the calls of a response before they are made.
    pub(super) fn before(&mut self, calls: &[Value]) -> RepeatAction {
        let same = self
            .last
            .as_ref()
            .is_some_and(|(last, _)| *last == signature(calls));
        if !same {
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
                "[not run: this exact call has been made {} times in a row with the same result. Do something else, \
                 or give your final answer.]",
                self.repeats
            ));
        }
        RepeatAction::Proceed
    }

    /// Looks at what they came to; a remark for the model when it repeats itself.
    pub(super) fn after(&mut self, calls: &[Value], results: &[Value]) -> Option<String> {
        if std::mem::take(&mut self.refused) {
            return None;
        }
        let now = (signature(calls), Value::from(results));
        self.repeats = if self.last.as_ref() == Some(&now) {
            self.repeats + 1
        } else {
            1
        };
        self.last = Some(now);
        (self.repeats >= WARN_AFTER_REPEATS).then(|| {
            format!(
                "\n[this is the same call with the same result for the {}th time in a row]",
                self.repeats
            )
        })
    }
}

/// The calls without their ids; how their arguments are written does not matter.
fn signature(calls: &[Value]) -> Value {
    let one = |call: &Value| {
        let arguments = call
            .pointer("/function/arguments")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let parsed = serde_json::from_str::<Value>(arguments);
        let arguments = parsed.unwrap_or_else(|_| arguments.into());
        Value::from(vec![
            call.pointer("/function/name").cloned().unwrap_or_default(),
            arguments,
        ])
    };
    calls.iter().map(one).collect()
}
