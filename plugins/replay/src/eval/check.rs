//! Checks the outcome of a case against its expectations.

use std::path::Path;

use serde_json::Value;

use super::case::{Expectations, called_tools};
use crate::{recording::Recording, report::CallTotals};

/// Maximum characters of an answer in an explanation.
const MAX_SHOWN_CHARS: usize = 200;

/// Returns what is not as expected, one line each.
pub(super) fn failures(
    expected: &Expectations,
    recording: &Recording,
    totals: &CallTotals,
    workspace: &Path,
) -> Vec<String> {
    let mut failures = Vec::new();
    let answer = recording
        .calls
        .last()
        .map(|call| call.text.as_str())
        .unwrap_or_default();
    let called = called_tools(recording);
    let mut rest = called.iter();
    let missing = expected.tools.iter().find(|tool| {
        let name = tool.replace('.', "_");
        !rest.any(|called| *called == name)
    });
    failures.extend(missing.map(|tool| {
        format!(
            "the tool `{tool}` is not called in the expected order; called: {}",
            list(&called)
        )
    }));
    let is_called = |tool: &&String| called.contains(&tool.replace('.', "_"));
    failures.extend(
        expected
            .not_tools
            .iter()
            .filter(is_called)
            .map(|tool| format!("the tool `{tool}` is called")),
    );
    let shown = || shorten(answer);
    for text in expected
        .text
        .iter()
        .filter(|text| !answer.contains(text.as_str()))
    {
        failures.push(format!(
            "the answer does not contain `{text}`: `{}`",
            shown()
        ));
    }
    for text in expected
        .not_text
        .iter()
        .filter(|text| answer.contains(text.as_str()))
    {
        failures.push(format!("the answer contains `{text}`: `{}`", shown()));
    }
    for (name, text) in &expected.files {
        let content = std::fs::read_to_string(workspace.join(name));
        match (text, content) {
            (None, Err(_)) => {}
            (None, Ok(_)) => failures.push(format!("the file `{name}` exists")),
            (Some(_), Err(error)) => {
                failures.push(format!("the file `{name}` cannot be read: {error}"));
            }
            (Some(text), Ok(content)) if content.contains(text.as_str()) => {}
            (Some(text), Ok(content)) => failures.push(format!(
                "the file `{name}` does not contain `{text}`: `{}`",
                shorten(&content)
            )),
        }
    }
    if let Some(limit) = expected.max_cost.filter(|limit| totals.cost > *limit) {
        failures.push(format!(
            "the cost is ${:.4}, more than ${limit}",
            totals.cost
        ));
    }
    let tokens = totals.input_tokens + totals.output_tokens;
    if let Some(limit) = expected.max_tokens.filter(|limit| tokens > *limit) {
        failures.push(format!("{tokens} tokens are used, more than {limit}"));
    }
    let steps = recording.calls.len();
    if let Some(limit) = expected.max_steps.filter(|limit| steps > *limit) {
        failures.push(format!("{steps} model calls are made, more than {limit}"));
    }
    if let Some(schema) = &expected.schema {
        let problem = match serde_json::from_str(answer) {
            Ok(value) => schema_problem(schema, &value, "the answer"),
            Err(error) => Some(format!("the answer is not JSON: {error}: `{}`", shown())),
        };
        failures.extend(problem);
    }
    failures
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names.join(", ")
}

/// Returns the first part of a value that does not match a schema.
fn schema_problem(schema: &Value, value: &Value, place: &str) -> Option<String> {
    if let Some(expected) = schema.get("type").and_then(Value::as_str) {
        let matches = match expected {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "null" => value.is_null(),
            _ => true,
        };
        if !matches {
            return Some(format!(
                "{place} is not of the type {expected}: `{}`",
                shorten(&value.to_string())
            ));
        }
    }
    if let Some(choices) = schema.get("enum").and_then(Value::as_array)
        && !choices.contains(value)
    {
        return Some(format!(
            "{place} is not one of the allowed values: `{value}`"
        ));
    }
    let required = schema.get("required").and_then(Value::as_array);
    let mut names = required.into_iter().flatten().filter_map(Value::as_str);
    if let Some(name) = names.find(|name| value.get(name).is_none()) {
        return Some(format!("{place} has no field `{name}`"));
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    let in_field = properties.into_iter().flatten().find_map(|(name, schema)| {
        schema_problem(schema, value.get(name)?, &format!("the field `{name}`"))
    });
    in_field.or_else(|| {
        let items = value.as_array()?.iter().enumerate();
        let schema = schema.get("items")?;
        items
            .into_iter()
            .find_map(|(index, item)| schema_problem(schema, item, &format!("item {index}")))
    })
}

pub(super) fn shorten(text: &str) -> String {
    let short: String = text.chars().take(MAX_SHOWN_CHARS).collect();
    let end = if short.len() < text.len() { "…" } else { "" };
    format!("{}{end}", short.replace('\n', "⏎"))
}
