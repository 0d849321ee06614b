//! Deviations of a provider from its wire format.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Deviations of a provider from its wire format, set in the catalog or in `providers.<name>.quirks`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches of a config table, not a state"
)]
pub struct Quirks {
    /// Name of the field that limits the output tokens; empty if the server has no such field.
    /// Default: `max_completion_tokens`.
    pub max_tokens_field: String,
    /// Whether to request a stream. If false, the server returns the complete answer at once. Default: true.
    pub streaming: bool,
    /// Whether to request usage at the end of a stream with `stream_options: {include_usage: true}`. Default: true.
    pub stream_options: bool,
    /// How the reasoning effort of a request is sent.
    pub effort: EffortForm,
    /// Fields of a streamed delta or a complete message that may contain reasoning text, in order of preference.
    pub reasoning_fields: Vec<String>,
    /// Whether to send reasoning text back with its assistant message. Some servers require the text, others reject it.
    /// Default: false.
    pub replay_reasoning: bool,
    /// Whether to send `cache_control: {type: ephemeral}` if the wire format supports it. Default: true.
    pub cache_control: bool,
    /// Whether to insert a fixed user message before a conversation that starts with an assistant message. Default:
    /// false.
    pub open_with_user: bool,
    /// Whether to rewrite `video_url` and `input_audio` content parts as `file` parts. Default: false.
    pub media_as_file: bool,
    /// Audio formats that the server accepts. Audio in another format is converted when a message arrives, and replaced
    /// with a note in requests. Default: `wav` and `mp3`.
    pub audio_formats: Vec<String>,
    /// Image formats that the server accepts. Images in another format are treated like audio. Default: `jpeg`, `png`,
    /// `gif` and `webp`.
    pub image_formats: Vec<String>,
    /// Maximum bytes of an image, before it is encoded as base64. Larger images are scaled down when a message arrives,
    /// and replaced with a note in requests. Default: 3,750,000, which is 5 MB of base64.
    pub max_image_bytes: usize,
    /// Maximum width and height of an image in pixels. Larger images are scaled down when a message arrives. Default:
    /// 2000, which the strictest servers accept in requests with many images.
    pub max_image_side: u32,
    /// Whether the server accepts videos in the chat-completions format. If false, they are replaced with a note.
    /// Default: true.
    pub video: bool,
    /// File extensions that the server accepts at its transcription endpoint. Other recordings are converted.
    pub transcription_formats: Vec<String>,
    /// Text to send as `instructions` if the request has no system message, for servers that require `instructions`.
    pub default_instructions: Option<String>,
    /// Default fields of the request body. The setting `completion_args` overrides them; objects are merged.
    pub default_body: Map<String, Value>,
    /// Fields of the request body that override the setting `completion_args`. The fields that bub sets itself, such as
    /// `model`, override these fields.
    pub extra_body: Map<String, Value>,
    /// Body fields that the server rejects. They are never sent.
    pub refused_fields: Vec<String>,
}

/// Form in which a server expects the reasoning effort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
            reasoning_fields: owned_names(&REASONING_FIELDS),
            replay_reasoning: false,
            cache_control: true,
            open_with_user: false,
            media_as_file: false,
            audio_formats: owned_names(&["wav", "mp3"]),
            image_formats: owned_names(&["jpeg", "png", "gif", "webp"]),
            max_image_bytes: 3_750_000,
            max_image_side: 2000,
            video: true,
            transcription_formats: owned_names(&[
                "flac", "m4a", "mp3", "mp4", "mpeg", "mpga", "oga", "ogg", "wav", "webm",
            ]),
            default_instructions: None,
            default_body: Map::new(),
            extra_body: Map::new(),
            refused_fields: Vec::new(),
        }
    }
}

fn owned_names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// Default of [`Quirks::reasoning_fields`]: the fields in which compatible servers send reasoning text.
pub const REASONING_FIELDS: [&str; 5] = [
    "reasoning_content",
    "thinking",
    "think",
    "chain_of_thought",
    "reasoning",
];
