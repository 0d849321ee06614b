//! The record of one step: a model call, its response and the results of its tool calls.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::{
    AppendReceipt, Entry, EntryId, Result, Tape, TapeSummary, entry::json_object, now_iso,
    tape_name::to_hex,
};

/// One step, to be recorded as one batch.
///
/// All fields are optional. Omit what the turn has already appended.
#[derive(Debug, Clone, Default)]
pub struct StepRecord {
    /// The run that all entries belong to.
    pub run_id: String,
    /// The system prompt. It is stored only at its first use on the tape; the `run` event contains its hash.
    pub system: Option<String>,
    /// An error that occurred while the context was built.
    pub context_error: Option<Entry>,
    /// New messages, in the format of the model API.
    pub messages: Vec<Map<String, Value>>,
    /// The tool calls of the response.
    pub tool_calls: Vec<Value>,
    /// The results of the tool calls, in the order of the calls.
    pub tool_results: Option<Vec<Value>>,
    /// The error of the step.
    pub error: Option<Entry>,
    /// The text of the response. If the response has tool calls, it is stored as `payload.content` of their entry.
    pub text: Option<String>,
    /// The token usage, as the provider reported it.
    pub usage: Option<Value>,
    /// The provider of the response.
    pub provider: Option<String>,
    /// The model of the response.
    pub model: Option<String>,
    /// State that the provider expects back with the calls, such as signatures.
    pub provider_state: Option<Value>,
    /// The entries of the view that the model got.
    pub view: Vec<EntryId>,
}

impl StepRecord {
    /// Creates an empty record for a run.
    pub fn new(run_id: impl Into<String>) -> Self {
        Self {
            run_id: run_id.into(),
            ..Self::default()
        }
    }
}

impl Tape {
    /// Appends a step as one batch. See [`StepRecord::into_entries`].
    pub async fn record_step(&self, step: StepRecord) -> Result<AppendReceipt> {
        let summary = self.summary().await?;
        self.append_all(step.into_entries(&summary)).await
    }
}

impl StepRecord {
    /// Converts the step to entries for a tape with this summary, in this order: system, context error, messages, tool
    /// call, tool result, error, assistant message, event `run`.
    pub fn into_entries(self, summary: &TapeSummary) -> Vec<Entry> {
        let hash = self.system.as_deref().map(prompt_hash);
        let system = match (&self.system, &hash) {
            (Some(text), Some(hash)) if !summary.prompts.contains(hash) => {
                Some(Entry::system(text).with_meta("sha256", hash.as_str()))
            }
            _ => None,
        };
        let run_id = self.run_id.clone();
        let mut batch = build_entries(self, system, hash);
        for entry in &mut batch {
            entry
                .meta
                .insert("run_id".to_owned(), run_id.clone().into());
        }
        batch
    }
}

fn build_entries(step: StepRecord, system: Option<Entry>, hash: Option<String>) -> Vec<Entry> {
    let run = run_event(&step, hash);
    let has_calls = !step.tool_calls.is_empty();
    let text = step.text.filter(|text| !text.is_empty());
    let mut batch: Vec<Entry> = system.into_iter().collect();
    batch.extend(step.context_error.clone());
    batch.extend(step.messages.into_iter().map(Entry::raw_message));
    if has_calls {
        batch.push(tool_call_entry(
            step.tool_calls,
            text.clone(),
            step.provider_state,
            step.model.as_deref(),
        ));
    }
    batch.extend(step.tool_results.map(Entry::tool_result));
    // Record the same error only once.
    batch.extend(step.error.filter(|error| {
        step.context_error
            .as_ref()
            .is_none_or(|context| context.payload != error.payload)
    }));
    if !has_calls {
        batch.extend(text.map(|text| Entry::message("assistant", text)));
    }
    // The event was created first, because the other entries move fields out of the step. Its date must not be earlier
    // than theirs.
    batch.push(run.with_date(now_iso()));
    batch
}

fn tool_call_entry(
    calls: Vec<Value>,
    text: Option<String>,
    state: Option<Value>,
    model: Option<&str>,
) -> Entry {
    let mut entry = Entry::tool_call(calls);
    if let Some(text) = text {
        entry.payload.insert("content".to_owned(), text.into());
    }
    if let Some(state) = state {
        let state = json_object([("model", model.into()), ("state", state)]);
        entry.meta.insert("provider_state".to_owned(), state.into());
    }
    entry
}

fn run_event(step: &StepRecord, hash: Option<String>) -> Entry {
    let failed = step.error.is_some() || step.context_error.is_some();
    let mut data = json_object([("status", if failed { "error" } else { "ok" }.into())]);
    let optional = [
        ("usage", step.usage.clone()),
        ("provider", step.provider.clone().map(Value::String)),
        ("model", step.model.clone().map(Value::String)),
        ("system_sha256", hash.map(Value::String)),
        (
            "view",
            (!step.view.is_empty()).then(|| id_ranges(&step.view)),
        ),
    ];
    data.extend(
        optional
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?))),
    );
    Entry::event("run", Some(Value::Object(data)))
}

/// Returns the SHA-256 of a system prompt in hexadecimal.
fn prompt_hash(text: &str) -> String {
    to_hex(&Sha256::digest(text.as_bytes()))
}

/// Converts ids to ranges, `[[first, last], …]`. A view consists of few ranges, and a list of all ids would be too
/// long.
fn id_ranges(ids: &[EntryId]) -> Value {
    let mut ranges: Vec<(EntryId, EntryId)> = Vec::new();
    for id in ids {
        match ranges.last_mut() {
            Some((_, last)) if last.next() == *id => *last = *id,
            _ => ranges.push((*id, *id)),
        }
    }
    ranges
        .into_iter()
        .map(|(first, last)| json!([first, last]))
        .collect()
}
