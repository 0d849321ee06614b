//! How a provider differs from the wire format it speaks.

use serde::Deserialize;
use serde_json::{Map, Value};

/// Differences of one provider, as data: a row of the catalogue or a user's config may set each.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches of a config table, not a state"
)]
pub struct Quirks {
    /// Name of the field that bounds the answer; empty when the server takes none.
    pub max_tokens_field: String,
    /// Ask for a stream at all; a server that has none answers in one piece.
    pub streaming: bool,
    /// Ask for usage at the end of a stream with `stream_options: {include_usage: true}`.
    pub stream_options: bool,
    /// How `reasoning_effort` is sent.
    pub effort: EffortForm,
    /// Fields of a delta or message that hold reasoning text, in the order in which they are tried.
    pub reasoning_fields: Vec<String>,
    /// Send reasoning text back with the assistant message it belongs to. Some servers demand it,
    /// some refuse it.
    pub replay_reasoning: bool,
    /// Send `cache_control: {type: ephemeral}` where the format knows it.
    pub cache_control: bool,
    /// Put a fixed user line in front of a conversation that opens with an assistant message.
    pub open_with_user: bool,
    /// Rewrite `video_url` and `input_audio` parts as `file` parts.
    pub media_as_file: bool,
    /// Text used as `instructions` when there is no system message; for servers that demand one.
    pub default_instructions: Option<String>,
    /// Body fields for this provider unless `completion_args` has them; objects are merged.
    pub default_body: Map<String, Value>,
    /// Body fields of this provider: they beat `completion_args` and lose to the request itself.
    pub extra_body: Map<String, Value>,
    /// Body fields this server refuses; they are never sent.
    pub refused_fields: Vec<String>,
}

/// How a server wants to be told the reasoning effort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EffortForm {
    /// The wire format's usual way.
    #[default]
    Standard,
    /// `reasoning: {effort: …}`.
    ReasoningObject,
    /// `thinking: {type: enabled | disabled}`: a switch without degrees.
    ThinkingSwitch,
    /// Not at all.
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

/// Names under which compatible servers send reasoning text.
pub const REASONING_FIELDS: [&str; 5] = [
    "reasoning_content",
    "thinking",
    "think",
    "chain_of_thought",
    "reasoning",
];
