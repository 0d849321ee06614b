//! Settings for models, providers and keys.

use std::time::Duration;

use bub_settings::{AnySetting, PerProvider, Secret, Section, SettingKey, text_format};
use serde_json::{Map, Value};

/// The model to use. Unset by default, because the default model of the Python version requires a key.
pub static MODEL: SettingKey<Option<String>> = SettingKey::new(
    "model",
    None,
    "Model to use, as `provider:model`; if unset, bub uses the first available model.",
)
.format(&text_format::MODEL);

/// Models to try, in order, if `model` fails.
pub static FALLBACK_MODELS: SettingKey<Option<Vec<String>>> = SettingKey::new(
    "fallback_models",
    None,
    "Models to try in order if `model` fails.",
)
.write_as_list();

/// API keys of the providers.
pub static API_KEY: SettingKey<PerProvider<Secret>> = SettingKey::new(
    "api_key",
    (),
    "API key for the provider of `model`, or a map from provider to key; `BUB_<PROVIDER>_API_KEY` sets one entry.",
)
.format(&text_format::KEY);

/// Base URLs of the providers.
///
/// The `.env` of an untrusted workspace cannot set this setting, because base URLs decide which server receives the
/// key.
pub static API_BASE: SettingKey<PerProvider<String>> = SettingKey::new(
    "api_base",
    (),
    "URL to use instead of the provider's own: one for the provider of `model`, or a map of provider to URL.",
)
.format(&text_format::BASE_URL)
.trusted();

/// Commands that print API keys.
///
/// The `.env` of an untrusted workspace cannot set this setting, because bub runs the commands.
pub static API_KEY_COMMAND: SettingKey<PerProvider<String>> = SettingKey::new(
    "api_key_command",
    (),
    "Command that prints the API key for the provider of `model`, or a map of provider to command; runs without a shell.",
)
.trusted();

/// Providers to add or change.
///
/// The `.env` of an untrusted workspace cannot set this setting, because base URLs decide which server receives the
/// key.
pub static PROVIDERS: SettingKey<Map<String, Value>> = SettingKey::new(
    "providers",
    (),
    "Providers to add or change: a map of name to `base_url`, `wire` (format of its API) and other fields; see docs/providers.md.",
)
.trusted();

/// Whether to detect model servers on this machine.
pub static LOCAL_MODELS: SettingKey<bool> = SettingKey::new(
    "local_models",
    true,
    "Detect model servers on this machine if no model is configured and no API key is found.",
);

/// Timeout of a model call; no limit by default.
pub static MODEL_TIMEOUT: SettingKey<Option<Duration>> = SettingKey::new(
    "model_timeout_seconds",
    None,
    "Timeout of a model call in seconds, streaming included; null for no limit.",
);

/// Maximum time without data from a model; two minutes by default.
pub static MODEL_IDLE_TIMEOUT: SettingKey<Duration> = SettingKey::new(
    "model_idle_timeout_seconds",
    Duration::from_mins(2),
    "Maximum time in seconds without data from a model, before and during an answer.",
);

/// Options of the HTTP client, with the names that the Python version uses.
///
/// The `.env` of an untrusted workspace cannot set this setting, because the options can redirect requests.
pub static CLIENT_ARGS: SettingKey<Map<String, Value>> = SettingKey::new(
    "client_args",
    (),
    "Options of the HTTP client for the provider of `model`: timeout, max_retries, default_headers, organization, project.",
)
.trusted();

static ROOT: &[&dyn AnySetting] = &[
    &MODEL,
    &FALLBACK_MODELS,
    &API_KEY,
    &API_BASE,
    &API_KEY_COMMAND,
    &PROVIDERS,
    &LOCAL_MODELS,
    &MODEL_TIMEOUT,
    &MODEL_IDLE_TIMEOUT,
    &CLIENT_ARGS,
];

/// Returns the sections with the settings of this crate, for `Loader::sections`. The section without a name adds
/// settings at the top level.
pub fn sections() -> [Section; 1] {
    [Section::new("", ROOT)]
}
