//! A report as text in two columns.

use std::fmt::Write as _;

use bub::output::sanitize;
use unicode_width::UnicodeWidthChar as _;

use super::{CallSummary, ReplayReport, ReplayedStep};

/// Width of a column.
const COLUMN_WIDTH: usize = 46;
/// Maximum number of lines of an answer.
const MAX_LINES: usize = 12;

/// Returns the report as text. Steps without a difference have one line.
pub(crate) fn to_text(report: &ReplayReport) -> String {
    let mut out = String::new();
    for turn in &report.turns {
        let prompt = turn.prompt.lines().next().unwrap_or_default();
        let _ = writeln!(out, "turn {}: {}", turn.number, sanitize(prompt));
        for step in &turn.steps {
            write_step(&mut out, step);
        }
        if let Some(note) = turn.note() {
            let _ = writeln!(out, "  {note}");
        }
    }
    let _ = writeln!(out, "recorded: {}", report.recorded.to_line());
    let _ = writeln!(out, "replayed: {}", report.replayed.to_line());
    for problem in report.problems() {
        let _ = writeln!(out, "error: {}", sanitize(&problem));
    }
    let _ = writeln!(out, "{}", report.outcome());
    out
}

fn write_step(out: &mut String, step: &ReplayedStep) {
    let names = |call: &CallSummary| {
        let names: Vec<_> = call
            .tool_calls
            .iter()
            .map(|call| call.name.as_str())
            .collect();
        names.join(", ")
    };
    let calls = step.recorded.as_ref().map(names).unwrap_or_default();
    if step.differences.is_empty() {
        let _ = writeln!(out, "  step {}: same  {}", step.number, sanitize(&calls));
        return;
    }
    let _ = writeln!(out, "  step {}: differs", step.number);
    for difference in &step.differences {
        let _ = writeln!(out, "    {}", sanitize(difference));
    }
    let column = |call: &Option<CallSummary>| {
        let text = call.as_ref().map(CallSummary::to_lines);
        wrap(&sanitize(&text.unwrap_or_else(|| "(none)".to_owned())))
    };
    let (left, right) = (column(&step.recorded), column(&step.replayed));
    write_row(out, "recorded", "replayed");
    for line in 0..left.len().max(right.len()) {
        let cell = |column: &[String]| column.get(line).cloned().unwrap_or_default();
        write_row(out, &cell(&left), &cell(&right));
    }
}

fn write_row(out: &mut String, left: &str, right: &str) {
    let width: usize = left.chars().map(|letter| letter.width().unwrap_or(0)).sum();
    let space = " ".repeat(COLUMN_WIDTH.saturating_sub(width));
    let row = format!("    {left}{space} | {right}");
    let _ = writeln!(out, "{}", row.trim_end());
}

/// Breaks a text into lines that fit a column.
fn wrap(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let (mut line, mut width) = (String::new(), 0);
        for letter in paragraph.chars() {
            let letter_width = letter.width().unwrap_or(0);
            if width + letter_width > COLUMN_WIDTH {
                lines.push(std::mem::take(&mut line));
                width = 0;
            }
            line.push(letter);
            width += letter_width;
        }
        lines.push(line);
    }
    if lines.len() > MAX_LINES {
        lines.truncate(MAX_LINES);
        lines.push("…".to_owned());
    }
    lines
}
