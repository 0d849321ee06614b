//! Turns whose process died: where their record ends, and how a replay stops there.
//!
//! The next turn of the session completes the record of such a turn: results of open tool calls, the part of the answer
//! that was received, and the status of the step. A replay runs the turn up to the same point and then gets these entries
//! from the tape, so that later requests are equal.

use std::ops::Range;

use bub::{Entry, EntryKind};
use serde_json::Value;

use crate::recording::{run_id, step_limit};

/// Start of the error of a step whose process died.
const INTERRUPTED_PREFIX: &str = "interrupted: ";

/// Where a turn was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InterruptedStage {
    BeforeModel,
    ModelCall,
    Tools,
    BetweenSteps,
}

/// The interruption of a turn.
#[derive(Clone, Debug)]
pub(crate) struct Interruption {
    pub(crate) stage: InterruptedStage,
    /// Number of the step in the turn, starting at 1.
    step: u64,
    /// The entries of the tape that complete the record of the turn.
    pub(crate) completion: Range<usize>,
    /// Whether the turn has no end because its process still runs it.
    pub(crate) is_running: bool,
}

impl Interruption {
    /// Finds the interruption of a run of bub, whose entries are in this range. Runs of the Python version have no id.
    pub(crate) fn find(entries: &[Entry], range: Range<usize>, run: &str) -> Option<Self> {
        let of_run = entries.get(range.clone()).unwrap_or_default().iter();
        let of_run: Vec<(usize, &Entry)> = (range.start..)
            .zip(of_run)
            .filter(|(_, entry)| !run.is_empty() && run_id(entry) == run)
            .collect();
        let is_start = |entry: &Entry| entry.name() == Some("loop.step.start");
        let start = of_run.iter().rposition(|(_, entry)| is_start(entry))?;
        let step = of_run
            .get(start)
            .and_then(|(_, entry)| entry.data()?.get("step")?.as_u64());
        let after = of_run.get(start + 1..).unwrap_or_default();
        if after.iter().any(|(_, entry)| step_limit(entry).is_some()) {
            return None;
        }
        let status = after
            .iter()
            .rposition(|(_, entry)| entry.name() == Some("loop.step"));
        let data = status.and_then(|index| after.get(index)?.1.data());
        let text = |key: &str| data.and_then(|data| data.get(key)?.as_str());
        let is_marked = text("error").is_some_and(|error| error.starts_with(INTERRUPTED_PREFIX));
        let is_between = matches!(text("status"), Some("continue" | "auto_handoff"));
        if status.is_some() && !is_marked && !is_between {
            return None;
        }
        let has_failed = |(_, entry): &(usize, &Entry)| entry.kind == EntryKind::Error;
        if !is_marked && after.iter().any(has_failed) {
            return None;
        }
        let has_answer = after
            .iter()
            .any(|(_, entry)| entry.name() == Some("run") || entry.kind == EntryKind::ToolCall);
        let stage = match (is_between, has_answer) {
            (true, _) => InterruptedStage::BetweenSteps,
            (false, true) => InterruptedStage::Tools,
            (false, false) => InterruptedStage::ModelCall,
        };
        // Without a status, the tape ends with the turn, or nothing had to be completed.
        let recorded = after.iter().take(if is_marked {
            status.unwrap_or_default()
        } else {
            after.len()
        });
        // The replay ends before the results of the step. What follows them, such as a handoff, is copied with them.
        let results = recorded
            .clone()
            .rposition(|(_, entry)| entry.kind == EntryKind::ToolResult);
        let recorded = recorded.take(results.unwrap_or(usize::MAX));
        let recorded = recorded.rev().find(|(_, entry)| !is_completion(entry));
        let recorded = recorded
            .or(of_run.get(start))
            .map_or(range.start, |last| last.0);
        let last = of_run.last().map_or(range.end, |last| last.0 + 1);
        let completion = if is_marked {
            recorded + 1..last
        } else {
            last..last
        };
        Some(Self {
            stage,
            step: step.unwrap_or(1),
            completion,
            is_running: false,
        })
    }

    /// Returns the interruption of a turn of which the tape has nothing but the message, which ends at this index.
    pub(crate) fn before_model(end: usize) -> Self {
        Self {
            stage: InterruptedStage::BeforeModel,
            step: 0,
            completion: end..end,
            is_running: false,
        }
    }

    /// Returns the number of entries of a replayed tape up to the interruption. `turn` is where the turn begins.
    pub(crate) fn replayed_length(&self, entries: &[Entry], turn: usize) -> usize {
        let is_start = |entry: &Entry| entry.name() == Some("loop.step.start");
        let is_end = |entry: &Entry| match self.stage {
            InterruptedStage::ModelCall => entry.kind == EntryKind::System || is_start(entry),
            InterruptedStage::Tools => entry.kind == EntryKind::ToolResult,
            InterruptedStage::BeforeModel | InterruptedStage::BetweenSteps => false,
        };
        let of_turn = entries.get(turn..).unwrap_or_default();
        if self.stage == InterruptedStage::BetweenSteps {
            // The replay has begun the next step, maybe with a handoff before it, to compare nothing in it.
            let step = |entry: &Entry| entry.data().and_then(|data| data.get("step")?.as_u64());
            let is_status =
                |entry: &Entry| entry.name() == Some("loop.step") && step(entry) == Some(self.step);
            let status = of_turn.iter().rposition(is_status);
            return status.map_or(entries.len(), |status| turn + status + 1);
        }
        let is_result = self.stage == InterruptedStage::Tools;
        let last = of_turn.iter().rposition(is_end);
        last.map_or(entries.len(), |last| turn + last + usize::from(!is_result))
    }

    /// Returns where the process died, or where the turn is.
    pub(crate) fn place_text(&self) -> String {
        let step = self.step;
        let place = match self.stage {
            InterruptedStage::BeforeModel => "before the model stage".to_owned(),
            InterruptedStage::ModelCall => format!("in the model call of step {step}"),
            InterruptedStage::Tools => format!("in the tools of step {step}"),
            InterruptedStage::BetweenSteps => format!("after step {step}"),
        };
        if self.is_running {
            format!("it is still running, {place}")
        } else {
            format!("its process ended {place}")
        }
    }
}

/// Returns whether an entry can be one that completes the record of an interrupted turn.
fn is_completion(entry: &Entry) -> bool {
    let role = entry.payload.get("role").and_then(Value::as_str);
    entry.kind == EntryKind::ToolResult
        || (entry.kind == EntryKind::Message && role == Some("assistant"))
}
