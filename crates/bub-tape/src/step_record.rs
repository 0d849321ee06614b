//! The record of one step: a model call, its response and the results of its tool calls.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::{AppendReceipt, Entry, Result, Tape, TapeSummary, entry::json_object, now_iso};

/// One step, to be recorded as one batch.
///
/// All fields except `run_id` are optional. Omit what the turn has already appended.
#[derive(Debug, Clone, Default)]
pub struct StepRecord {
    /// The run that all entries belong to.
    pub run_id: String,
    /// The system prompt. It is stored only at its first use on the tape. The `run` event contains its hash, unless it
    /// is the newest one on the tape.
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

/// A system prompt and its hash, which costs more than the rest of the record. So callers keep it while the text stays
/// the same.
#[derive(Debug, Clone)]
pub struct SystemPrompt {
    text: String,
    hash: String,
}

impl SystemPrompt {
    /// Computes the hash of a text.
    pub fn new(text: String) -> Self {
        let hash = format!("{:x}", Sha256::digest(&text));
        Self { text, hash }
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// How a call's system prompt is recorded: the text once per tape, and its hash if it is not the newest one.
#[derive(Debug)]
pub struct SystemPromptRecord {
    /// The entry with the text, if the tape does not have it yet.
    pub entry: Option<Entry>,
    /// The hash of the text, if another system prompt was stored on the tape after it. Otherwise the newest system
    /// prompt on the tape is the one of the call.
    pub hash: Option<String>,
}

impl SystemPromptRecord {
    /// Creates the record for a call on a tape with this summary.
    pub fn new(prompt: &SystemPrompt, summary: &TapeSummary) -> Self {
        let SystemPrompt { text, hash } = prompt;
        let is_stored = summary.prompts.contains(hash);
        let is_newest = !is_stored || summary.prompts.last() == Some(hash);
        Self {
            entry: (!is_stored)
                .then(|| Entry::system(text.as_str()).with_meta("sha256", hash.as_str())),
            hash: (!is_newest).then(|| hash.clone()),
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
        let system = self.system.clone().map(SystemPrompt::new);
        let system = system.map(|prompt| SystemPromptRecord::new(&prompt, summary));
        let (system, hash) = system.map_or((None, None), |system| (system.entry, system.hash));
        let run = run_event(&self, hash);
        let mut batch: Vec<Entry> = system.into_iter().collect();
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
    let optional = [
        ("usage", step.usage.clone()),
        ("provider", step.provider.clone().map(Value::String)),
        ("model", step.model.clone().map(Value::String)),
        ("system_sha256", hash.map(Value::String)),
    ];
    for (key, value) in optional {
        data.extend(value.map(|value| (key.to_owned(), value)));
    }
    Entry::event("run", Some(Value::Object(data)))
}
