//! Deviations of a provider from its wire format.

use serde::Deserialize;
use serde_json::{Map, Value};

/// Deviations of a provider from its wire format, set in the catalog or in `providers.<name>.quirks`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches of a config table, not a state"
)]
pub struct Quirks {
    /// Name of the field that limits the output tokens; empty if the server has no such field.
    /// Default: `max_completion_tokens`.
    pub max_tokens_field: String,
    /// Request a stream. If false, the server returns the answer at once. Default: true.
    pub streaming: bool,
    /// Request usage at the end of a stream with `stream_options: {include_usage: true}`. Default: true.
    pub stream_options: bool,
    /// How `reasoning_effort` is sent.
    pub effort: EffortForm,
    /// Fields of a delta or message that may contain reasoning text, in order of preference.
    pub reasoning_fields: Vec<String>,
    /// Send reasoning text back with its assistant message. Some servers require it, others reject it.
    /// Default: false.
    pub replay_reasoning: bool,
    /// Send `cache_control: {type: ephemeral}` if the wire format supports it. Default: true.
    pub cache_control: bool,
    /// Insert a fixed user message before a conversation that starts with an assistant message. Default: false.
    pub open_with_user: bool,
    /// Rewrite `video_url` and `input_audio` parts as `file` parts. Default: false.
    pub media_as_file: bool,
    /// Text to send as `instructions` if the request has no system message, for servers that require it.
    pub default_instructions: Option<String>,
    /// Body fields that `completion_args` overrides; objects are merged.
    pub default_body: Map<String, Value>,
    /// Body fields that override `completion_args`. The fields of the request override them.
    pub extra_body: Map<String, Value>,
    /// Body fields that the server rejects. They are never sent.
    pub refused_fields: Vec<String>,
}

/// Form in which a server expects the reasoning effort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EffortForm {
    /// The usual form of the wire format.
    #[default]
    Standard,
    /// `reasoning: {effort: …}`.
    ReasoningObject,
    /// `thinking: {type: enabled | disabled}`: on or off, without levels.
    ThinkingSwitch,
    /// The effort is not sent.
    Omit,
}

impl Default for Quirks {
    fn default() -> Self {
        Self {
            max_tokens_field: "max_completion_tokens".into(),
            streaming: true,
            stream_options: true,
            effort: EffortForm::Standard,
            reasoning_fields: REASONING_FIELDS
                .iter()
                .map(|&name| name.to_owned())
                .collect(),
            replay_reasoning: false,
            cache_control: true,
            open_with_user: false,
            media_as_file: false,
            default_instructions: None,
            default_body: Map::new(),
            extra_body: Map::new(),
            refused_fields: Vec::new(),
        }
    }
}

/// Names of the fields in which compatible servers send reasoning text.
pub const REASONING_FIELDS: [&str; 5] = [
    "reasoning_content",
    "thinking",
    "think",
    "chain_of_thought",
    "reasoning",
];
