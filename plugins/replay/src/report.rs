//! The report of a replay: recorded and replayed answers side by side, with tokens, cost and time.

mod html;
mod text;

use bub::{
    agent::usage::TokenCounts,
    model::{Catalog, ModelId, Price},
    tape::EntryId,
};
use serde::Serialize;
use serde_json::Value;

pub(crate) use self::{
    html::{escape, to_html},
    text::to_text,
};
use crate::{
    difference::compare,
    interruption::Interruption,
    recording::{RecordedCall, Recording},
    session::ReplaySession,
};

/// The report of a replay.
#[derive(Debug, Serialize)]
pub(crate) struct ReplayReport {
    pub(crate) session_id: String,
    /// The model, or `None` if the answers come from the tape.
    pub(crate) model: Option<String>,
    /// Turn and step at which the replay first differs from the tape, starting at 1.
    pub(crate) first_divergence: Option<(usize, usize)>,
    pub(crate) recorded: CallTotals,
    pub(crate) replayed: CallTotals,
    /// Plugins that failed in the replay. Their effect is not part of it, so it proves nothing.
    pub(crate) plugin_failures: Vec<PluginFailure>,
    /// Ids of the recorded messages whose media are missing or damaged. The requests with them cannot be compared.
    pub(crate) incomplete_messages: Vec<i64>,
    pub(crate) turns: Vec<ReplayedTurn>,
}

/// The first failure of a plugin in a replay.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PluginFailure {
    pub(crate) plugin: String,
    pub(crate) error: String,
}

/// One turn of a replay.
#[derive(Debug, Serialize)]
pub(crate) struct ReplayedTurn {
    pub(crate) number: usize,
    pub(crate) prompt: String,
    /// Where the process of the recorded turn died, if it did. The turn is compared up to there.
    pub(crate) interrupted: Option<String>,
    /// Whether the recorded turn is still running.
    pub(crate) is_running: bool,
    /// Why the turn was copied and not run again, if so.
    pub(crate) not_replayed: Option<String>,
    pub(crate) steps: Vec<ReplayedStep>,
}

/// One step of a replay. A side is missing if it has fewer steps than the other one.
#[derive(Debug, Serialize)]
pub(crate) struct ReplayedStep {
    pub(crate) number: usize,
    /// The first difference of the request, then of the answer.
    pub(crate) differences: Vec<String>,
    pub(crate) recorded: Option<CallSummary>,
    pub(crate) replayed: Option<CallSummary>,
}

/// The answer of one model call, with the results of its tool calls.
#[derive(Debug, Serialize)]
pub(crate) struct CallSummary {
    pub(crate) text: String,
    pub(crate) tool_calls: Vec<ToolCallSummary>,
    pub(crate) error: Option<String>,
    #[serde(flatten)]
    pub(crate) totals: CallTotals,
}

/// One tool call with its result.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct ToolCallSummary {
    pub(crate) name: String,
    pub(crate) arguments: String,
    pub(crate) result: String,
}

/// Tokens, cost and time of model calls.
#[derive(Debug, Default, Serialize)]
pub(crate) struct CallTotals {
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
    /// The cost in US dollars, without calls of unknown price.
    pub(crate) cost: f64,
    pub(crate) calls_of_unknown_price: u64,
    pub(crate) elapsed_ms: u64,
}

impl CallTotals {
    pub(crate) fn add(&mut self, other: &Self) {
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.cost += other.cost;
        self.calls_of_unknown_price += other.calls_of_unknown_price;
        self.elapsed_ms += other.elapsed_ms;
    }

    /// Returns tokens and cost of calls.
    pub(crate) fn new<'a>(
        calls: impl IntoIterator<Item = &'a RecordedCall>,
        catalog: &Catalog,
    ) -> Self {
        let mut sum = Self::default();
        for call in calls {
            let tokens = call.usage.as_ref().and_then(TokenCounts::from_usage);
            let price = price(call, catalog);
            let tokens = tokens.unwrap_or_default();
            sum.add(&Self {
                input_tokens: tokens.input,
                output_tokens: tokens.output,
                cost: price.map_or(0.0, |price| tokens.cost(price)),
                calls_of_unknown_price: u64::from(price.is_none()),
                elapsed_ms: call.elapsed_ms,
            });
        }
        sum
    }

    /// Returns the cost as text.
    pub(crate) fn cost_text(&self) -> String {
        match self.calls_of_unknown_price {
            0 => format!("${:.4}", self.cost),
            _ if self.cost == 0.0 => "cost unknown".to_owned(),
            _ => format!("more than ${:.4}", self.cost),
        }
    }

    /// Returns the totals in one line.
    pub(crate) fn to_line(&self) -> String {
        let (input, output, cost) = (self.input_tokens, self.output_tokens, self.cost_text());
        format!("{input} + {output} tokens, {cost}, {} ms", self.elapsed_ms)
    }
}

/// Returns the price of the model of a call.
pub(crate) fn price(call: &RecordedCall, catalog: &Catalog) -> Option<Price> {
    let model: ModelId = call.model.as_ref()?.parse().ok()?;
    catalog.price(&model)
}

impl ReplayReport {
    /// Compares the recording of a session with its replay.
    pub(crate) fn new(
        session_id: &str,
        session: &ReplaySession,
        replayed: &Recording,
        catalog: &Catalog,
        plugin_failures: Vec<PluginFailure>,
    ) -> Self {
        let recording = &*session.recording;
        let (first_turn, differences) = (session.options.first_turn, session.differences());
        let (mut turns, mut first_divergence) = (Vec::new(), None);
        let (mut recorded_totals, mut replayed_totals) =
            (CallTotals::default(), CallTotals::default());
        for (index, turn) in recording.turns.iter().enumerate().skip(first_turn) {
            let recorded = recording.calls.get(turn.calls.clone()).unwrap_or_default();
            let other = replayed.turns.get(index);
            let other = other.and_then(|turn| replayed.calls.get(turn.calls.clone()));
            let other = other.unwrap_or_default();
            let interruption = turn.interruption.as_ref();
            let interrupted_calls = usize::from(turn.interrupted_call().is_some());
            let not_replayed = Recording::not_replayed(turn);
            let count = match not_replayed {
                Some(_) => 0,
                None => (recorded.len() + interrupted_calls).max(other.len()),
            };
            let mut steps = Vec::new();
            for step in 0..count {
                let (left, right) = (recorded.get(step), other.get(step));
                let in_request = differences
                    .iter()
                    .filter(|(in_turn, in_step, _)| (*in_turn, *in_step) == (index, step));
                let mut found: Vec<String> = in_request
                    .map(|(_, _, text)| format!("request: {text}"))
                    .collect();
                let left = left.map(|call| CallSummary::new(call, catalog));
                let right = right.map(|call| CallSummary::new(call, catalog));
                let is_missing = step >= other.len()
                    && (step < recorded.len() || session.unfinished(index).is_some());
                found.extend(if is_missing {
                    {
                        let error = session.unfinished(index).unwrap_or_default();
                        Some(format!("the replay has no such step{error}"))
                    }
                } else {
                    answer_difference(left.as_ref(), right.as_ref())
                });
                if !found.is_empty() {
                    first_divergence = first_divergence.or(Some((index + 1, step + 1)));
                }
                for (side, totals) in [
                    (&left, &mut recorded_totals),
                    (&right, &mut replayed_totals),
                ] {
                    if let Some(side) = side {
                        totals.add(&side.totals);
                    }
                }
                steps.push(ReplayedStep {
                    number: step + 1,
                    differences: found,
                    recorded: left,
                    replayed: right,
                });
            }
            turns.push(ReplayedTurn {
                number: index + 1,
                prompt: recording.prompt_text(turn),
                interrupted: interruption.map(Interruption::place_text),
                is_running: interruption.is_some_and(|interruption| interruption.is_running),
                not_replayed,
                steps,
            });
        }
        Self {
            session_id: session_id.to_owned(),
            model: session.options.model.clone(),
            first_divergence,
            recorded: recorded_totals,
            replayed: replayed_totals,
            plugin_failures,
            incomplete_messages: recording
                .incomplete_messages(first_turn)
                .into_iter()
                .map(EntryId::get)
                .collect(),
            turns,
        }
    }

    /// Returns why the replay proves nothing even if it has no difference, one line per reason.
    pub(crate) fn problems(&self) -> Vec<String> {
        let failures = self.plugin_failures.iter().map(PluginFailure::to_line);
        let incomplete = self.incomplete_messages.iter().map(|id| {
            format!(
                "media of entry {id} are missing or damaged, so the requests with them cannot be compared; run `bub tape check`"
            )
        });
        failures.chain(incomplete).collect()
    }

    /// Returns the outcome in one line.
    pub(crate) fn outcome(&self) -> String {
        let problem = match (&*self.plugin_failures, &*self.incomplete_messages) {
            ([], []) => None,
            ([], _) => Some("not compared: recorded media are missing or damaged"),
            _ => Some("not compared: a plugin failed"),
        };
        match self.first_divergence {
            Some((turn, step)) => format!("first difference: turn {turn}, step {step}"),
            None => problem.unwrap_or("no difference").to_owned(),
        }
    }
}

impl ReplayedTurn {
    /// Returns what is special about the turn, in one line.
    pub(crate) fn note(&self) -> Option<String> {
        match (&self.interrupted, &self.not_replayed) {
            (Some(place), None) if self.is_running => {
                Some(format!("{place}; compared up to there"))
            }
            (Some(place), None) => Some(format!("interrupted: {place}; compared up to there")),
            (Some(place), Some(_)) if self.is_running => Some(format!("{place}; not replayed")),
            (Some(place), Some(_)) => Some(format!("interrupted: {place}; not replayed")),
            (None, reason) => reason
                .as_ref()
                .map(|reason| format!("{reason}, not replayed")),
        }
    }
}

impl PluginFailure {
    /// Returns what failed, and what to do.
    pub(crate) fn to_line(&self) -> String {
        let Self { plugin, error } = self;
        format!(
            "plugin `{plugin}` failed: {error}; its effect is missing in the replay; see `bub plugin show {plugin}`, fix it and replay again"
        )
    }
}

impl CallSummary {
    fn new(call: &RecordedCall, catalog: &Catalog) -> Self {
        let text = |value: Option<&Value>| match value {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => String::new(),
        };
        let tool_calls = call
            .tool_calls
            .iter()
            .enumerate()
            .map(|(index, tool_call)| ToolCallSummary {
                name: text(tool_call.pointer("/function/name")),
                arguments: text(tool_call.pointer("/function/arguments")),
                result: text(call.results.get(index)),
            });
        Self {
            text: call.text.clone(),
            tool_calls: tool_calls.collect(),
            error: call.error.as_ref().map(|error| text(error.get("message"))),
            totals: CallTotals::new([call], catalog),
        }
    }

    /// Returns the answer as text: the text, then one line per tool call with its result.
    fn to_lines(&self) -> String {
        let mut lines: Vec<String> = Vec::new();
        lines.extend((!self.text.is_empty()).then(|| self.text.clone()));
        for call in &self.tool_calls {
            lines.push(format!("{}({})", call.name, call.arguments));
            lines.push(format!("→ {}", call.result));
        }
        lines.extend(self.error.as_ref().map(|error| format!("error: {error}")));
        lines.join("\n")
    }
}

/// Returns the first difference of two answers.
fn answer_difference(
    recorded: Option<&CallSummary>,
    replayed: Option<&CallSummary>,
) -> Option<String> {
    let (recorded, replayed) = match (recorded, replayed) {
        (Some(recorded), Some(replayed)) => (recorded, replayed),
        (None, Some(_)) => return Some("the tape has no such step".to_owned()),
        (_, None) => return None,
    };
    let (left, right) = (recorded.to_lines(), replayed.to_lines());
    (left != right).then(|| format!("answer: {}", compare(&left, &right)))
}
