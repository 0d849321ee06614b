//! The record of one step: a model call, its response and the results of its tool calls.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::{
    AppendReceipt, Entry, EntryId, Result, Tape, TapeSummary, entry::json_object, now_iso,
};

/// One step, to be recorded as one batch.
///
/// All fields except `run_id` are optional. Omit what the turn has already appended.
#[derive(Debug, Clone, Default)]
pub struct StepRecord {
    /// The run that all entries belong to.
    pub run_id: String,
    /// The system prompt. It is stored only at its first use on the tape; the `run` event contains its hash.
    pub system: Option<String>,
    /// An error that occurred while the context was built.
    pub context_error: Option<Entry>,
    /// New messages, in the format of the chat completions API.
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
    /// Data that the provider expects back with the tool calls in later requests, such as signatures.
    pub provider_state: Option<Value>,
    /// The ids of the entries in the view that the model got.
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
        let hash = (self.system.as_ref()).map(|text| format!("{:x}", Sha256::digest(text)));
        let run = run_event(&self, hash.clone());
        let mut batch = Vec::new();
        if let (Some(text), Some(hash)) = (self.system, hash)
            && !summary.prompts.contains(&hash)
        {
            batch.push(Entry::system(&text).with_meta("sha256", hash));
        }
        // Record the same error only once.
        let context_payload = self.context_error.as_ref().map(|error| &error.payload);
        let error = (self.error).filter(|error| Some(&error.payload) != context_payload);
        batch.extend(self.context_error);
        batch.extend(self.messages.into_iter().map(Entry::raw_message));
        let mut text = self.text.filter(|text| !text.is_empty());
        if !self.tool_calls.is_empty() {
            let mut entry = Entry::tool_call(self.tool_calls);
            let content = text.take().map(|text| ("content".to_owned(), text.into()));
            entry.payload.extend(content);
            if let Some(state) = self.provider_state {
                let state = json_object([("model", self.model.into()), ("state", state)]);
                entry.meta.insert("provider_state".to_owned(), state.into());
            }
            batch.push(entry);
        }
        batch.extend(self.tool_results.map(Entry::tool_result));
        batch.extend(error);
        batch.extend(text.map(|text| Entry::message("assistant", text)));
        // The event was created first, because the other entries move fields out of the step. Its date must not be
        // earlier than theirs.
        batch.push(run.with_date(now_iso()));
        for entry in &mut batch {
            (entry.meta).insert("run_id".to_owned(), self.run_id.clone().into());
        }
        batch
    }
}

fn run_event(step: &StepRecord, hash: Option<String>) -> Entry {
    let failed = step.error.is_some() || step.context_error.is_some();
    let mut data = json_object([("status", if failed { "error" } else { "ok" }.into())]);
    let view = (!step.view.is_empty()).then(|| id_ranges(&step.view));
    let optional = [
        ("usage", step.usage.clone()),
        ("provider", step.provider.clone().map(Value::String)),
        ("model", step.model.clone().map(Value::String)),
        ("system_sha256", hash.map(Value::String)),
        ("view", view),
    ];
    for (key, value) in optional {
        data.extend(value.map(|value| (key.to_owned(), value)));
    }
    Entry::event("run", Some(Value::Object(data)))
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
