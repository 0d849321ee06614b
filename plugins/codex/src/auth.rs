//! The stored Codex login: reads its tokens and refreshes them.
//!
//! Only one process refreshes at a time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bub::model::fetch::Fetch;
use bub::settings::Redactor;
use bub::{CredentialError, Secret};
use tokio::sync::Mutex;
use tracing::Instrument as _;

use crate::auth_file::{AuthFile, OAuthTokens};
use crate::token;

/// How long before its expiry a token is refreshed, so that it stays valid during a call that starts now.
const REFRESH_MARGIN_SECONDS: i64 = 120;

/// How long a process waits while another process refreshes the tokens.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

const EXPIRED_TEXT: &str = "it has expired and has no refresh token";
const REMOVED_TEXT: &str = "it was removed";

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
#[derive(Clone)]
pub struct CodexAuth {
    pub(crate) file: AuthFile,
    pub(crate) endpoints: OAuthEndpoints,
    pub(crate) fetch: Arc<dyn Fetch>,
    pub(crate) redactor: Redactor,
    /// Allows one refresh at a time in this process. The lock file excludes other processes.
    refreshing: Arc<Mutex<()>>,
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
            refreshing: Arc::default(),
        }
    }

    /// Returns whether usable tokens are stored, without a network request. Fails if they exist but cannot be used.
    pub(crate) fn check_tokens(&self) -> Result<bool, CredentialError> {
        match self.read_tokens()? {
            Some(tokens) if tokens.refresh_token.is_none() && tokens.expires_at <= unix_now() => {
                Err(EXPIRED_TEXT.to_owned().into())
            }
            tokens => Ok(tokens.is_some()),
        }
    }

    /// Returns the tokens of the login, or `None` without a login. Refreshes tokens that are about to expire.
    pub(crate) async fn valid_tokens(&self) -> Result<Option<OAuthTokens>, CredentialError> {
        let deadline = unix_now() + REFRESH_MARGIN_SECONDS;
        self.tokens_unless(|tokens| tokens.expires_at <= deadline)
            .await
    }

    /// Returns new tokens after the server rejected the access token `refused`.
    pub(crate) async fn renew_tokens(
        &self,
        refused: &Secret,
    ) -> Result<Option<OAuthTokens>, CredentialError> {
        self.tokens_unless(|tokens| tokens.access_token == *refused)
            .await
    }

    /// Returns the stored tokens, or new ones if the stored tokens are stale.
    async fn tokens_unless(
        &self,
        is_stale: impl FnOnce(&OAuthTokens) -> bool,
    ) -> Result<Option<OAuthTokens>, CredentialError> {
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
        &self,
        old_tokens: OAuthTokens,
    ) -> Result<OAuthTokens, CredentialError> {
        let codex = self.clone();
        let refresh = async move { codex.refresh_tokens(&old_tokens).await };
        let task = tokio::spawn(refresh.in_current_span()).await;
        task.unwrap_or_else(|_| {
            let text = "the refresh was interrupted".to_owned();
            Err(CredentialError::temporary(text))
        })
    }

    /// Refreshes the tokens, unless another task or process has just refreshed them. If the refresh fails, returns the
    /// current tokens as long as they are valid.
    async fn refresh_tokens(
        &self,
        old_tokens: &OAuthTokens,
    ) -> Result<OAuthTokens, CredentialError> {
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
            None => Err(CredentialError::from(EXPIRED_TEXT.to_owned())),
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
    ) -> Result<OAuthTokens, CredentialError> {
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

/// Returns the current time in seconds since the Unix epoch.
pub(crate) fn unix_now() -> i64 {
    jiff::Timestamp::now().as_second()
}
