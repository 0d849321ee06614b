//! Checks the outcome of a case against its expectations.

use std::{io::ErrorKind, path::Path};

use bub::model::Catalog;

use super::{
    case::{Expectations, called_tools},
    schema::first_mismatch,
};
use crate::{
    files,
    recording::Recording,
    report::{CallTotals, price},
};

/// Maximum characters of an answer in an explanation.
const MAX_SHOWN_CHARS: usize = 200;

/// Returns what is not as expected, one line each.
pub(super) fn failures(
    expected: &Expectations,
    recording: &Recording,
    totals: &CallTotals,
    catalog: &Catalog,
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
        let content = read_file(workspace, name);
        match (text, content) {
            (None, Err(error)) if error.kind() == ErrorKind::NotFound => {}
            (None, Ok(_)) => failures.push(format!("the file `{name}` exists")),
            (_, Err(error)) => {
                failures.push(format!("the file `{name}` cannot be read: {error}"));
            }
            (Some(text), Ok(content)) if content.contains(text.as_str()) => {}
            (Some(text), Ok(content)) => failures.push(format!(
                "the file `{name}` does not contain `{text}`: `{}`",
                shorten(&content)
            )),
        }
    }
    if let Some(limit) = expected.max_cost {
        let models = unknown_prices(recording, catalog);
        if totals.cost > limit {
            failures.push(format!(
                "the cost is ${:.4}, more than ${limit}",
                totals.cost
            ));
        } else if !models.is_empty() {
            failures.push(format!(
                "the cost is unknown, so `max_cost` cannot be checked: unknown price of {}; set the price \
                 of the model in `providers`, or use `max_tokens`",
                models.join(", ")
            ));
        }
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
            Ok(value) => first_mismatch(schema, &value, "the answer"),
            Err(error) => Some(format!("the answer is not JSON: {error}: `{}`", shown())),
        };
        failures.extend(problem);
    }
    failures
}

/// Returns the models of a recording whose price is unknown.
fn unknown_prices(recording: &Recording, catalog: &Catalog) -> Vec<String> {
    let mut models: Vec<String> = Vec::new();
    for call in recording
        .calls
        .iter()
        .filter(|call| price(call, catalog).is_none())
    {
        let model = call.model.as_deref().unwrap_or("an unknown model");
        if !models.iter().any(|known| known == model) {
            models.push(model.to_owned());
        }
    }
    models
}

/// Reads a file of the workspace. Fails if the path leads out of the workspace, also through a link.
fn read_file(workspace: &Path, name: &str) -> std::io::Result<String> {
    let path = workspace.join(name).canonicalize()?;
    if !path.starts_with(workspace.canonicalize()?) {
        return Err(std::io::Error::other("it is outside of the workspace"));
    }
    let bytes = files::read_file(&path)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names.join(", ")
}

pub(super) fn shorten(text: &str) -> String {
    let short: String = text.chars().take(MAX_SHOWN_CHARS).collect();
    let end = if short.len() < text.len() { "…" } else { "" };
    format!("{}{end}", short.replace('\n', "⏎"))
}
