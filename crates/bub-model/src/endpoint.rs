//! What a call needs besides the request, and why it may be missing.

use std::path::PathBuf;

use bub_settings::{Secret, SettingsError};

use crate::base_url::BaseUrl;
use crate::{
    KeySource, ModelError, ModelErrorKind, ModelId, ParseModelIdError, Quirks, RecoveryAction,
    WireFormat,
};

/// Where and how to call one model, its credentials included.
///
/// A key leaves this crate only inside such a value, next to the address it belongs to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Endpoint {
    /// The model, with the provider's proper name.
    pub id: ModelId,
    /// What the provider speaks.
    pub wire: WireFormat,
    /// How it differs from that.
    pub quirks: Quirks,
    /// Where it is; the path of the wire's request is appended.
    pub base_url: BaseUrl,
    /// Credentials and the provider's own headers. Header names are lower case.
    pub headers: Vec<(String, Secret)>,
    /// Where the key came from; `None` when the provider is called without one.
    pub key: Option<KeySource>,
    /// The model's context window in tokens, if it is known.
    pub context_window: Option<u64>,
}

/// Why a model cannot be called as things are configured. The text says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The identifier has no provider.
    #[error(transparent)]
    NotAModel(#[from] ParseModelIdError),
    /// The setting `model` is wrong.
    #[error("{origin}: {problem}")]
    Configured {
        /// Where it stands.
        origin: bub_settings::SettingSource,
        /// What is wrong with it.
        problem: Box<AccessError>,
    },
    /// The provider is not in the catalogue.
    #[error(
        "there is no provider `{name}`{}; `bub models` lists them, and `providers.{name}.base_url` in {} adds one",
        .suggestion.as_ref().map(|name| format!(", did you mean `{name}`?")).unwrap_or_default(),
        .config_file.display()
    )]
    UnknownProvider {
        /// The name that was written.
        name: String,
        /// The known name that looks like it.
        suggestion: Option<String>,
        /// Where a provider can be added.
        config_file: PathBuf,
    },
    /// There is no key for the provider.
    #[error("no API key for `{provider}`: set {variable} or `api_key.{provider}` in {}{login}", .config_file.display())]
    NoKey {
        /// The provider.
        provider: String,
        /// The variable that would hold the key.
        variable: String,
        /// Where a key can be written down.
        config_file: PathBuf,
        /// The other way in, as an addition to the sentence.
        login: String,
    },
    /// The provider has no usual address, and none is configured.
    #[error("no address for `{provider}`: set {variable} or `api_base.{provider}` in {}", .config_file.display())]
    NoBase {
        /// The provider.
        provider: String,
        /// The variable that would hold the address.
        variable: String,
        /// Where an address can be written down.
        config_file: PathBuf,
    },
    /// A configured address is none.
    #[error(
        "{origin}: the address of `{provider}` is not {}",
        crate::base_url::EXPECTED_FORMAT
    )]
    BadBase {
        /// The provider.
        provider: String,
        /// Where the address stands.
        origin: String,
    },
    /// The key holds characters that no header may have.
    #[error(
        "the key of `{provider}` from {source_text} has spaces, line breaks or other characters no key has"
    )]
    BadKey {
        /// The provider.
        provider: String,
        /// Where the key came from.
        source_text: String,
    },
    /// The command that should print the key did not.
    #[error("`api_key_command` of `{provider}` {problem}")]
    KeyCommand {
        /// The provider.
        provider: String,
        /// What went wrong.
        problem: String,
    },
    /// The login cannot be used.
    #[error("the login of `{provider}` cannot be used: {problem}; run `bub login {provider}`")]
    Login {
        /// The provider.
        provider: String,
        /// What went wrong.
        problem: String,
    },
    /// The login cannot be used now, and is not to blame.
    #[error("the login of `{provider}` cannot be refreshed now: {problem}; try again in a while")]
    LoginLater {
        /// The provider.
        provider: String,
        /// What went wrong.
        problem: String,
    },
    /// The settings are wrong.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

impl AccessError {
    /// What to do, in few words: for lists in which the rest is clear.
    pub fn hint(&self) -> String {
        match self {
            Self::NoKey {
                variable, login, ..
            } => format!("set {variable}{login}"),
            Self::NoBase { variable, .. } => format!("set {variable} to its address"),
            error => error.to_string(),
        }
    }
}

impl From<AccessError> for ModelError {
    fn from(error: AccessError) -> Self {
        if let AccessError::LoginLater { .. } = error {
            return Self::new(
                ModelErrorKind::Transport,
                RecoveryAction::Retry,
                error.to_string(),
            );
        }
        let action = match &error {
            AccessError::NotAModel(_)
            | AccessError::Configured { .. }
            | AccessError::UnknownProvider { .. }
            | AccessError::NoBase { .. }
            | AccessError::BadBase { .. }
            | AccessError::Settings(_) => RecoveryAction::GiveUp,
            AccessError::NoKey { .. }
            | AccessError::BadKey { .. }
            | AccessError::LoginLater { .. }
            | AccessError::KeyCommand { .. }
            | AccessError::Login { .. } => RecoveryAction::Reauthenticate,
        };
        Self::new(ModelErrorKind::Setup, action, error.to_string())
    }
}
