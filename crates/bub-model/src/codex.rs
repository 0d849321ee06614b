//! The Codex login: OAuth tokens shared with the Codex CLI.
//!
//! [`CodexAuth::valid_tokens`] returns a valid access token. It refreshes the token shortly before it expires; only one
//! process refreshes at a time. [`LoginFlow`] runs a new login. The tokens are in the file of the Codex CLI, and bub
//! preserves all other content of that file.

mod auth_file;
mod callback;
mod jwt;
mod login;
mod pkce;
mod redirect;
mod token;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bub_settings::{Redactor, Secret};
use tokio::sync::Mutex;
use tracing::Instrument as _;

use self::auth_file::AuthFile;
pub use self::auth_file::OAuthTokens;
#[doc(hidden)]
pub use self::auth_file::read_login;
pub(crate) use self::jwt::account_id;
pub use self::login::{LoginError, LoginFlow, LoginOutcome};
use crate::fetch::Fetch;

/// The provider that the Codex login belongs to.
pub const PROVIDER: &str = "openai";

/// The model to use if a Codex login exists but no model and no key is configured.
pub const DEFAULT_MODEL: &str = "gpt-6-sol";

/// Base URL of model calls with the Codex login.
pub(crate) const BASE_URL: &str = "https://chatgpt.com/backend-api/codex";

/// How the service for calls with the Codex login deviates from its wire format, as JSON with the fields of `Quirks`.
pub(crate) const CODEX_QUIRKS: &str = r#"{
    "default_instructions": "You are Codex.",
    "default_body": {"text": {"verbosity": "medium"}},
    "refused_fields": ["max_tokens", "max_output_tokens", "max_completion_tokens", "temperature", "top_p"]
}"#;

/// How long before its expiry a token is refreshed, so that it stays valid during a call that starts now.
const REFRESH_MARGIN_SECONDS: i64 = 120;

/// How long a process waits while another process refreshes the tokens.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

const EXPIRED_TEXT: &str = "it has expired and has no refresh token";
const REMOVED_TEXT: &str = "it was removed";

/// Error of a login whose tokens cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenError {
    /// The reason, in one line.
    pub text: String,
    /// Whether the login may work later. If not, the user must log in again.
    pub is_temporary: bool,
}

impl TokenError {
    fn temporary(text: String) -> Self {
        Self {
            text,
            is_temporary: true,
        }
    }
}

impl From<String> for TokenError {
    fn from(text: String) -> Self {
        Self {
            text,
            is_temporary: false,
        }
    }
}

/// URLs of the login service. Tests replace them.
#[derive(Clone, Debug)]
pub struct OAuthEndpoints {
    /// URL of the sign-in page.
    pub authorize: String,
    /// URL of the service that exchanges codes and refresh tokens for new tokens.
    pub token: String,
    /// Port of the local listener that the browser is redirected to; 0 for any free port.
    pub callback_port: u16,
}

impl Default for OAuthEndpoints {
    fn default() -> Self {
        Self::with_issuer("https://auth.openai.com")
    }
}

impl OAuthEndpoints {
    /// Returns the default endpoints, but with the sign-in server at the base URL `issuer`.
    pub fn with_issuer(issuer: &str) -> Self {
        let issuer = issuer.trim_end_matches('/');
        Self {
            authorize: format!("{issuer}/oauth/authorize"),
            token: format!("{issuer}/oauth/token"),
            callback_port: 1455,
        }
    }
}

/// Access to the stored Codex login: reads and refreshes its tokens.
// The crate `oauth2` would replace the form, the query and PKCE: about 60 lines. The login file, the refresh that several
// processes share, and the errors without tokens would stay.
pub struct CodexAuth {
    file: AuthFile,
    endpoints: OAuthEndpoints,
    fetch: Arc<dyn Fetch>,
    redactor: Redactor,
    /// Allows one refresh at a time in this process. The lock file excludes other processes.
    refreshing: Mutex<()>,
}

impl CodexAuth {
    /// Creates access to the login in the directory `home` (`$CODEX_HOME`), without reading its file.
    pub fn new(
        home: &Path,
        endpoints: OAuthEndpoints,
        fetch: Arc<dyn Fetch>,
        redactor: Redactor,
    ) -> Self {
        Self {
            file: AuthFile::in_directory(home),
            endpoints,
            fetch,
            redactor,
            refreshing: Mutex::default(),
        }
    }

    /// Returns the path of the login file.
    pub fn file_path(&self) -> PathBuf {
        self.file.path().to_owned()
    }

    /// Returns the URLs of the login service.
    pub fn endpoints(&self) -> &OAuthEndpoints {
        &self.endpoints
    }

    /// Returns whether a usable login exists, without a network request.
    ///
    /// # Errors
    ///
    /// Fails with the reason if a login exists but cannot be used.
    pub fn has_usable_login(&self) -> Result<bool, String> {
        match self.read_tokens()? {
            Some(tokens) if tokens.refresh_token.is_none() && tokens.expires_at <= unix_now() => {
                Err(EXPIRED_TEXT.to_owned())
            }
            tokens => Ok(tokens.is_some()),
        }
    }

    /// Returns the tokens of the login, or `None` without a login. Refreshes tokens that are about to expire.
    pub async fn valid_tokens(self: &Arc<Self>) -> Result<Option<OAuthTokens>, TokenError> {
        let deadline = unix_now() + REFRESH_MARGIN_SECONDS;
        self.tokens_unless(|tokens| tokens.expires_at <= deadline)
            .await
    }

    /// Returns new tokens after the server rejected the access token `refused`.
    pub async fn renew_tokens(
        self: &Arc<Self>,
        refused: &Secret,
    ) -> Result<Option<OAuthTokens>, TokenError> {
        self.tokens_unless(|tokens| tokens.access_token == *refused)
            .await
    }

    /// Returns the stored tokens, or new ones if the stored tokens are stale.
    async fn tokens_unless(
        self: &Arc<Self>,
        is_stale: impl FnOnce(&OAuthTokens) -> bool,
    ) -> Result<Option<OAuthTokens>, TokenError> {
        match self.read_tokens()? {
            Some(tokens) if is_stale(&tokens) => self.refresh_in_task(tokens).await.map(Some),
            tokens => Ok(tokens),
        }
    }

    /// Refreshes the tokens in a separate task.
    ///
    /// The task completes even if the caller is cancelled. The server may have revoked the old refresh token already,
    /// so the new one must be stored.
    async fn refresh_in_task(
        self: &Arc<Self>,
        old_tokens: OAuthTokens,
    ) -> Result<OAuthTokens, TokenError> {
        let codex = Arc::clone(self);
        let refresh = async move { codex.refresh_tokens(&old_tokens).await };
        let task = tokio::spawn(refresh.in_current_span()).await;
        task.unwrap_or_else(|_| {
            let text = "the refresh was interrupted".to_owned();
            Err(TokenError::temporary(text))
        })
    }

    /// Refreshes the tokens, unless another task or process has just refreshed them. If the refresh fails, returns the
    /// current tokens as long as they are valid.
    async fn refresh_tokens(&self, old_tokens: &OAuthTokens) -> Result<OAuthTokens, TokenError> {
        let _refresh_guard = self.refreshing.lock().await;
        let _file_lock = self.file.lock(LOCK_TIMEOUT).await?;
        let current = self.read_tokens()?.ok_or_else(|| REMOVED_TEXT.to_owned())?;
        if current.access_token != old_tokens.access_token
            && current.expires_at > unix_now() + REFRESH_MARGIN_SECONDS
        {
            return Ok(current);
        }
        let outcome = match &current.refresh_token {
            Some(refresh_token) => self.exchange_refresh_token(refresh_token).await,
            None => Err(TokenError::from(EXPIRED_TEXT.to_owned())),
        };
        match outcome {
            Err(error) if current.expires_at > unix_now() => {
                // The old token is still valid.
                tracing::warn!(error = %error.text, "login.refresh_failed");
                Ok(current)
            }
            outcome => outcome,
        }
    }

    /// Exchanges the refresh token for new tokens and stores them.
    async fn exchange_refresh_token(
        &self,
        refresh_token: &Secret,
    ) -> Result<OAuthTokens, TokenError> {
        let grant = [
            ("grant_type", "refresh_token"),
            ("refresh_token", refresh_token.expose()),
        ];
        let granted = token::request_tokens(&*self.fetch, &self.endpoints.token, &grant).await?;
        granted.register_secrets(&self.redactor);
        self.file.store_tokens(&granted, unix_now())?;
        Ok(self.read_tokens()?.ok_or_else(|| REMOVED_TEXT.to_owned())?)
    }

    fn read_tokens(&self) -> Result<Option<OAuthTokens>, String> {
        let tokens = self.file.read_tokens(unix_now())?;
        if let Some(tokens) = &tokens {
            tokens.register_secrets(&self.redactor);
        }
        Ok(tokens)
    }
}

/// Returns the headers of a model call with this access token.
pub(crate) fn request_headers(token: &Secret, account: Option<&str>) -> Vec<(String, Secret)> {
    let bearer = Secret::from(format!("Bearer {}", token.expose()));
    let account = account.map(|account| ("chatgpt-account-id".to_owned(), Secret::from(account)));
    let fixed = [
        ("openai-beta", "responses=experimental"),
        ("originator", "bub"),
    ];
    let fixed = fixed.map(|(name, value)| (name.to_owned(), Secret::from(value)));
    [("authorization".to_owned(), bearer)]
        .into_iter()
        .chain(account)
        .chain(fixed)
        .collect()
}

/// Returns the current time in seconds since the Unix epoch.
fn unix_now() -> i64 {
    jiff::Timestamp::now().as_second()
}
