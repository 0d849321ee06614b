//! The Codex login: OAuth tokens that the Codex command line and bub share.
//!
//! [`CodexAuth::tokens`] gives a usable access token and refreshes it when it is about to expire, one
//! process at a time; [`LoginFlow`] makes a new one. The file is that of the Codex command line, and what
//! others keep in it stays there.

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
use crate::base_url::BaseUrl;
use crate::fetch::Fetch;

/// The provider that this login is for.
pub const PROVIDER: &str = "openai";

/// The model used when a login is all there is.
pub const DEFAULT_MODEL: &str = "gpt-6-sol";

/// What every call of the service must carry, as quirks of the wire.
pub(crate) const CODEX_QUIRKS: &str = r#"{
    "default_instructions": "You are Codex.",
    "default_body": {"text": {"verbosity": "medium"}},
    "refused_fields": ["max_tokens", "max_output_tokens", "max_completion_tokens", "temperature", "top_p"]
}"#;

/// Refreshed this long before it expires, so that a call that starts now still ends in time.
const REFRESH_MARGIN_SECONDS: i64 = 120;

/// How long a process waits for another one that is refreshing.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

const EXPIRED_TEXT: &str = "it has expired and holds no refresh token";
const REMOVED_TEXT: &str = "it was removed";

/// Why a login gives no token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenError {
    /// What went wrong, in one line.
    pub text: String,
    /// Whether the same login may work later. Otherwise a new one is needed.
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

/// Where the services are; tests point it at themselves.
#[derive(Clone, Debug)]
pub struct OAuthEndpoints {
    /// Where the user signs in.
    pub authorize: String,
    /// Where codes and refresh tokens become tokens.
    pub token: String,
    /// Where models are called.
    pub api: String,
    /// The port of the local listener that the browser comes back to; 0 for any free one.
    pub callback_port: u16,
}

impl Default for OAuthEndpoints {
    fn default() -> Self {
        Self::of_issuer("https://auth.openai.com")
    }
}

impl OAuthEndpoints {
    /// The usual services, with this one to sign in at.
    pub fn of_issuer(issuer: &str) -> Self {
        let issuer = issuer.trim_end_matches('/');
        Self {
            authorize: format!("{issuer}/oauth/authorize"),
            token: format!("{issuer}/oauth/token"),
            api: "https://chatgpt.com/backend-api/codex".to_owned(),
            callback_port: 1455,
        }
    }

    /// Where models are called, with the path the service wants.
    pub(crate) fn api(&self) -> Option<BaseUrl> {
        let base = self.api.trim_end_matches('/');
        let base = base.strip_suffix("/responses").unwrap_or(base);
        let base = base.strip_suffix("/codex").unwrap_or(base);
        BaseUrl::parse(&format!("{base}/codex"))
    }
}

/// The login as a model call uses it.
pub struct CodexAuth {
    shared: Arc<CodexAuthInner>,
}

struct CodexAuthInner {
    file: AuthFile,
    endpoints: OAuthEndpoints,
    fetch: Arc<dyn Fetch>,
    redactor: Redactor,
    /// One refresh at a time in this process; the lock file sees to the others.
    refreshing: Mutex<()>,
}

impl CodexAuth {
    /// The login kept in `home` (`$CODEX_HOME`). Nothing is read yet.
    pub fn new(
        home: &Path,
        endpoints: OAuthEndpoints,
        fetch: Arc<dyn Fetch>,
        redactor: Redactor,
    ) -> Self {
        let file = AuthFile::in_directory(home);
        Self {
            shared: Arc::new(CodexAuthInner {
                file,
                endpoints,
                fetch,
                redactor,
                refreshing: Mutex::default(),
            }),
        }
    }

    /// The file of the login.
    pub fn file(&self) -> PathBuf {
        self.shared.file.path().to_owned()
    }

    /// Where the services are.
    pub fn endpoints(&self) -> &OAuthEndpoints {
        &self.shared.endpoints
    }

    /// Whether there is a login that can be used, as far as this computer can tell; the error says why the
    /// one that is there cannot.
    pub fn check(&self) -> Result<bool, String> {
        match self.shared.read()? {
            Some(tokens) if tokens.refresh_token.is_none() && tokens.expires_at <= now() => {
                Err(EXPIRED_TEXT.to_owned())
            }
            tokens => Ok(tokens.is_some()),
        }
    }

    /// Tokens that are valid for a while; `None` without a login.
    pub async fn tokens(&self) -> Result<Option<OAuthTokens>, TokenError> {
        match self.shared.read()? {
            Some(tokens) if tokens.expires_at <= now() + REFRESH_MARGIN_SECONDS => {
                self.refresh(tokens).await.map(Some)
            }
            tokens => Ok(tokens),
        }
    }

    /// New tokens, because these were refused.
    pub async fn renew(&self, refused: &Secret) -> Result<Option<OAuthTokens>, TokenError> {
        match self.shared.read()? {
            Some(tokens) if tokens.access_token == *refused => self.refresh(tokens).await.map(Some),
            tokens => Ok(tokens),
        }
    }

    /// A refresh runs to its end in a task of its own, even if the call that wanted it is cancelled: the
    /// server may have taken back the old refresh token already, and the new one must not be lost.
    async fn refresh(&self, old: OAuthTokens) -> Result<OAuthTokens, TokenError> {
        let shared = Arc::clone(&self.shared);
        let task = tokio::spawn(async move { shared.refresh(&old).await }.in_current_span());
        task.await
            .unwrap_or_else(|_| Err(TokenError::temporary("the refresh was cut off".to_owned())))
    }
}

impl CodexAuthInner {
    /// Refreshes unless another task or process has just done so. When that fails, the old token
    /// serves as long as it is valid.
    async fn refresh(&self, old: &OAuthTokens) -> Result<OAuthTokens, TokenError> {
        let _one_at_a_time = self.refreshing.lock().await;
        let _across_processes = self.file.lock(LOCK_TIMEOUT).await?;
        let current = self.read()?.ok_or_else(|| REMOVED_TEXT.to_owned())?;
        if current.access_token != old.access_token
            && current.expires_at > now() + REFRESH_MARGIN_SECONDS
        {
            return Ok(current);
        }
        let outcome = match &current.refresh_token {
            Some(refresh_token) => self.exchange(refresh_token).await,
            None => Err(TokenError::from(EXPIRED_TEXT.to_owned())),
        };
        match outcome {
            Err(problem) if current.expires_at > now() => {
                // The old token is still valid.
                tracing::warn!(error = %problem.text, "login.refresh_failed");
                Ok(current)
            }
            outcome => outcome,
        }
    }

    async fn exchange(&self, refresh_token: &Secret) -> Result<OAuthTokens, TokenError> {
        let grant = token::TokenRequest::Refresh(refresh_token);
        let granted = token::send(&*self.fetch, &self.endpoints.token, grant).await?;
        granted.register(&self.redactor);
        self.file.store(&granted, now())?;
        Ok(self.read()?.ok_or_else(|| REMOVED_TEXT.to_owned())?)
    }

    fn read(&self) -> Result<Option<OAuthTokens>, String> {
        let tokens = self.file.read(now())?;
        if let Some(tokens) = &tokens {
            tokens.register(&self.redactor);
        }
        Ok(tokens)
    }
}

/// The headers of a model call.
pub(crate) fn headers(token: &Secret, account: Option<&str>) -> Vec<(String, Secret)> {
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

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}
