//! The endpoint of a model call, and the errors that prevent a call.

use std::path::PathBuf;

use bub_settings::{Secret, SettingsError};

use crate::base_url::BaseUrl;
use crate::{
    KeySource, ModelError, ModelId, ParseModelIdError, Quirks, RecoveryAction, WireFormat,
};

/// Everything a call needs besides the request: base URL, wire format and credentials.
///
/// Keys leave this crate only inside an endpoint, together with the base URL they belong to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Endpoint {
    /// The model, with the canonical name of its provider.
    pub id: ModelId,
    /// The wire format of the provider.
    pub wire: WireFormat,
    /// Deviations of the provider from the wire format.
    pub quirks: Quirks,
    /// Base URL of the provider. The wire format appends the path of the request.
    pub base_url: BaseUrl,
    /// Credentials and configured headers of the provider. Header names are in lower case.
    pub headers: Vec<(String, Secret)>,
    /// Source of the key; `None` if the provider is called without a key.
    pub key: Option<KeySource>,
    /// Command with which users sign in again if the provider rejects the credentials of a login.
    pub sign_in_command: Option<String>,
    /// The model's context window in tokens, if it is known.
    pub context_window: Option<u64>,
}

impl Endpoint {
    /// Creates the endpoint of a model that is called without a key.
    ///
    /// ```
    /// use bub_model::{BaseUrl, Endpoint, ModelId, WireFormat};
    ///
    /// let base_url = BaseUrl::parse("http://127.0.0.1:8080/v1").unwrap();
    /// let id = ModelId::new("llamacpp", "default");
    /// let endpoint = Endpoint::new(id, WireFormat::ChatCompletions, base_url);
    /// ```
    pub fn new(id: ModelId, wire: WireFormat, base_url: BaseUrl) -> Self {
        Self {
            id,
            wire,
            quirks: Quirks::default(),
            base_url,
            headers: Vec::new(),
            key: None,
            sign_in_command: None,
            context_window: None,
        }
    }

    /// Adds a key in the header that the wire format uses.
    #[must_use]
    pub fn with_key(mut self, key: &Secret) -> Self {
        let (name, value) = self.wire.key_header(key);
        self.headers.push((name.to_owned(), value));
        self
    }
}

/// Reason why a model cannot be called with the current settings. The text says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The model identifier is invalid.
    #[error(transparent)]
    InvalidModelId(#[from] ParseModelIdError),
    /// The setting `model` is invalid.
    #[error("{origin}: {problem}")]
    InvalidModelSetting {
        /// Source of the setting.
        origin: bub_settings::SettingSource,
        /// The reason.
        problem: Box<AccessError>,
    },
    /// The provider is not in the catalog.
    #[error(
        "unknown provider `{name}`{}; run `bub models` to list providers, or add it with `providers.{name}.base_url` in {}",
        .suggestion.as_ref().map(|name| format!(", did you mean `{name}`?")).unwrap_or_default(),
        .config_file.display()
    )]
    UnknownProvider {
        /// The unknown name.
        name: String,
        /// A known name that is similar.
        suggestion: Option<String>,
        /// The config file, in which the user can add a provider.
        config_file: PathBuf,
    },
    /// The provider requires a key, and none is set.
    #[error("no API key for `{provider}`: set {variable} or `api_key.{provider}` in {}{login}", .config_file.display())]
    MissingKey {
        /// The provider.
        provider: String,
        /// The environment variable for the key.
        variable: String,
        /// The config file, in which the user can set a key.
        config_file: PathBuf,
        /// Hint about the login, to append to the text; empty if the provider has no login.
        login: String,
    },
    /// The provider has no default base URL, and none is configured.
    #[error("no base URL for `{provider}`: set {variable} or `api_base.{provider}` in {}", .config_file.display())]
    MissingBaseUrl {
        /// The provider.
        provider: String,
        /// The environment variable for the base URL.
        variable: String,
        /// The config file, in which the user can set a base URL.
        config_file: PathBuf,
    },
    /// The configured base URL is invalid.
    #[error(
        "{origin}: invalid base URL for `{provider}`: expected {}",
        crate::base_url::EXPECTED_FORMAT
    )]
    InvalidBaseUrl {
        /// The provider.
        provider: String,
        /// Source of the base URL.
        origin: String,
    },
    /// The key contains characters that are not allowed in a header.
    #[error(
        "invalid API key for `{provider}` from {source_text}: it contains spaces, line breaks or other forbidden characters; check the key"
    )]
    InvalidKey {
        /// The provider.
        provider: String,
        /// Source of the key.
        source_text: String,
    },
    /// The command of `api_key_command` failed.
    #[error("`api_key_command` of `{provider}`: {problem}")]
    KeyCommandFailed {
        /// The provider.
        provider: String,
        /// The reason.
        problem: String,
    },
    /// The login cannot be used.
    #[error("the login for `{provider}` cannot be used: {problem}; run `{command}`")]
    LoginFailed {
        /// The provider.
        provider: String,
        /// The reason.
        problem: String,
        /// The command with which users sign in.
        command: String,
    },
    /// The login is valid but cannot be used at the moment.
    #[error("the login for `{provider}` cannot be refreshed: {problem}; try again later")]
    LoginUnavailable {
        /// The provider.
        provider: String,
        /// The reason.
        problem: String,
    },
    /// A setting is invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

impl AccessError {
    /// Returns a short text that says what to do, for lists that name the provider already.
    pub fn hint(&self) -> String {
        match self {
            Self::MissingKey {
                variable, login, ..
            } => format!("set {variable}{login}"),
            Self::MissingBaseUrl { variable, .. } => format!("set {variable} to its base URL"),
            error => error.to_string(),
        }
    }
}

impl From<AccessError> for ModelError {
    fn from(error: AccessError) -> Self {
        let text = error.to_string();
        match error {
            AccessError::LoginUnavailable { .. } => Self::transport(text),
            AccessError::MissingKey { .. }
            | AccessError::InvalidKey { .. }
            | AccessError::KeyCommandFailed { .. }
            | AccessError::LoginFailed { .. } => {
                Self::setup(text).with_action(RecoveryAction::Reauthenticate)
            }
            _ => Self::setup(text),
        }
    }
}
