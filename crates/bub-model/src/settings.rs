//! Settings for models, providers and keys.

use std::time::Duration;

use bub_settings::{FromSettings, PerProvider, Secret, Section, Settings, text_format};
use serde_json::{Map, Value};

/// Settings at the top level of the config file.
#[derive(Settings)]
#[settings(section = "", crate = bub_settings)]
pub struct ModelSettings {
    /// Model to use, as `provider:model`; if unset, bub uses the first available model.
    ///
    /// Unset by default, because the default model of the Python version requires a key.
    #[setting(format = &text_format::MODEL)]
    pub model: Option<String>,
    /// Models to try in order if `model` fails.
    #[setting(write_as_list)]
    pub fallback_models: Option<Vec<String>>,
    /// API key for the provider of `model`, or a map from provider to key; `BUB_<PROVIDER>_API_KEY` sets one entry.
    #[setting(format = &text_format::KEY)]
    pub api_key: PerProvider<Secret>,
    /// URL to use instead of the provider's own: one for the provider of `model`, or a map of provider to URL.
    #[setting(format = &text_format::BASE_URL)]
    pub api_base: PerProvider<String>,
    /// Command that prints the API key for the provider of `model`, or a map of provider to command; runs without a
    /// shell.
    pub api_key_command: PerProvider<String>,
    /// Providers to add or change: a map of name to `base_url`, `wire` (format of its API) and other fields; see
    /// docs/providers.md.
    pub providers: Map<String, Value>,
    /// Detect model servers on this machine if no model is configured and no API key is found, and offer their
    /// models.
    #[setting(default = true)]
    pub local_models: bool,
    /// Timeout of a model call in seconds, streaming included; null for no limit.
    #[setting(name = "model_timeout_seconds")]
    pub model_timeout: Option<Duration>,
    /// Maximum time in seconds without data from a model, before and during an answer.
    #[setting(default = Duration::from_mins(2), name = "model_idle_timeout_seconds")]
    pub model_idle_timeout: Duration,
    /// Options of the HTTP client for the provider of `model`: `timeout`, `max_retries`, `default_headers`,
    /// `organization`, `project`.
    pub client_args: Map<String, Value>,
}

/// Returns the sections with the settings of this crate, for `Loader::sections`. The section without a name adds
/// settings at the top level.
pub fn sections() -> [Section; 1] {
    [ModelSettings::section()]
}
