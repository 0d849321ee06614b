//! Logins: access to a provider with an account instead of an API key.
//!
//! A plugin implements [`ProviderLogin`] and adds it to the program with `App::login`.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bub_settings::{Secret, Settings};

use crate::fetch::Fetch;
use crate::{Endpoint, ModelId};

/// Creates a login from the settings. The login sends its requests, such as a refresh, with the given [`Fetch`].
///
/// bub calls it for each [`Models`](crate::Models), so it reads only settings.
pub type LoginFactory = fn(&Settings, Arc<dyn Fetch>) -> Arc<dyn ProviderLogin>;

/// Access to a provider with an account instead of an API key.
///
/// bub uses the login if the provider has no key and no other base URL is configured, so credentials are sent only to
/// the base URL that the login returns. The login stores its credentials and refreshes them; it registers each secret
/// with [`Settings::redactor`]. Users sign in with a command of the plugin.
#[async_trait]
pub trait ProviderLogin: Send + Sync {
    /// Returns the provider's name in the catalog.
    fn provider(&self) -> &str;

    /// Returns the name of the model to use if the login exists, but no model and no key is configured.
    fn default_model(&self) -> &str;

    /// Returns the path of the file that stores the login, for display.
    fn file_path(&self) -> PathBuf;

    /// Returns the command with which users sign in, for error messages.
    fn sign_in_command(&self) -> String {
        format!("bub login {}", self.provider())
    }

    /// Returns whether a usable login exists, without a network request. Fails if the login exists but cannot be used.
    fn has_usable_login(&self) -> Result<bool, CredentialError>;

    /// Returns the endpoint of a model with valid credentials, or `None` without a login.
    ///
    /// bub calls it before every model call, so it is fast unless the credentials must be refreshed. The call may be
    /// cancelled; refresh in a separate task if the old credentials become invalid.
    async fn endpoint(&self, model: &ModelId) -> Result<Option<Endpoint>, CredentialError>;

    /// Returns the endpoint of a model if the provider's API key is a token of this login. Default: `None`.
    fn endpoint_with_key(&self, _model: &ModelId, _key: &Secret) -> Option<Endpoint> {
        None
    }

    /// Gets other credentials after the provider rejected those of the endpoint `refused`. Returns whether
    /// [`endpoint`](Self::endpoint) now returns other credentials.
    async fn renew(&self, refused: &Endpoint) -> Result<bool, CredentialError>;
}

/// Error of a login that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialError {
    /// The reason, in one line without secrets.
    pub text: String,
    /// Whether the login may work later. If not, the user must sign in again.
    pub is_temporary: bool,
}

impl CredentialError {
    /// Creates the error of a login that may work later.
    pub fn temporary(text: String) -> Self {
        Self {
            text,
            is_temporary: true,
        }
    }
}

/// Creates the error of a login after which the user must sign in again.
impl From<String> for CredentialError {
    fn from(text: String) -> Self {
        Self {
            text,
            is_temporary: false,
        }
    }
}
