//! Logging in: a page to sign in at, a code that comes back, tokens for it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use form_urlencoded::Serializer;

use super::callback::{self, Listener};
use super::pkce::Pkce;
use super::{CodexAuth, CodexAuthInner, LOCK_TIMEOUT, TokenError, now, redirect, token};

/// Why a login did not come about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoginError {
    /// The answer does not belong to this attempt.
    #[error(
        "the answer belongs to another attempt (its state is missing or different); start again, and use the page shown then"
    )]
    StateMismatch,
    /// The answer holds no code.
    #[error(
        "no code found in what was pasted; paste the address of the page you end on after signing in (`http://localhost…?code=…&state=…`), what follows its `?`, or the code"
    )]
    NoCode,
    /// The user or the service said no.
    #[error("the sign-in was refused: {0}")]
    Refused(String),
    /// The browser did not come back.
    #[error("nobody signed in within {0} seconds; start again, --timeout gives you longer")]
    TimedOut(u64),
    /// The port of the listener is taken.
    #[error("port {port} cannot be used ({source}); end the other login, or use --manual")]
    Port {
        /// The port.
        port: u16,
        /// What the system said.
        source: io::Error,
    },
    /// Nothing came in.
    #[error("nothing was pasted: standard input ended")]
    NoInput,
    /// The login could not be kept.
    #[error("{0}; make it writable, or name another directory with --codex-home")]
    Unwritable(String),
    /// The code could not be exchanged, or the tokens not be kept.
    #[error("{}{}", .0.text, if .0.is_temporary { "; try again in a while" } else { "" })]
    Failed(TokenError),
}

/// A login that came about.
#[derive(Debug, Clone)]
pub struct LoginOutcome {
    /// The account, if the token names it.
    pub account_id: Option<String>,
    /// The file that holds the login.
    pub file: PathBuf,
}

/// One attempt to log in.
pub struct LoginFlow<'a> {
    codex: &'a CodexAuthInner,
    pkce: Pkce,
    redirect: String,
    listener: Option<Listener>,
}

impl<'a> LoginFlow<'a> {
    /// An attempt whose code a browser on this computer brings back.
    pub async fn with_listener(codex: &'a CodexAuth) -> Result<Self, LoginError> {
        let port = codex.endpoints().callback_port;
        let taken = |source| LoginError::Port { port, source };
        let listener = Listener::bind(port).await.map_err(taken)?;
        let port = listener.port().map_err(taken)?;
        Self::new(codex, port, Some(listener))
    }

    /// An attempt whose code the user pastes.
    pub fn manual(codex: &'a CodexAuth) -> Result<Self, LoginError> {
        Self::new(codex, codex.endpoints().callback_port, None)
    }

    fn new(
        codex: &'a CodexAuth,
        port: u16,
        listener: Option<Listener>,
    ) -> Result<Self, LoginError> {
        let pkce = Pkce::new().map_err(|problem| LoginError::Failed(problem.into()))?;
        let codex = &*codex.shared;
        codex
            .file
            .check_writable()
            .map_err(LoginError::Unwritable)?;
        codex.redactor.register(&pkce.verifier);
        let redirect = format!("http://localhost:{port}{}", callback::CALLBACK_PATH);
        Ok(Self {
            codex,
            pkce,
            redirect,
            listener,
        })
    }

    /// The page to sign in at.
    pub fn url(&self) -> String {
        let mut query = Serializer::new(String::new());
        query.extend_pairs([
            ("response_type", "code"),
            ("client_id", token::CLIENT_ID),
            ("redirect_uri", &self.redirect),
            ("scope", "openid profile email offline_access"),
            ("code_challenge", &self.pkce.challenge),
            ("code_challenge_method", "S256"),
            ("id_token_add_organizations", "true"),
            ("codex_cli_simplified_flow", "true"),
            ("state", &self.pkce.state),
            ("originator", "codex_cli_rs"),
        ]);
        format!("{}?{}", self.codex.endpoints.authorize, query.finish())
    }

    /// Waits until the browser brings the code, and finishes the login.
    pub async fn wait(mut self, wait_timeout: Duration) -> Result<LoginOutcome, LoginError> {
        let listener = self.listener.take().ok_or(LoginError::NoCode)?;
        let waited = tokio::time::timeout(wait_timeout, listener.code(&self.pkce.state)).await;
        let code = waited.map_err(|_| LoginError::TimedOut(wait_timeout.as_secs()))??;
        self.finish(&code).await
    }

    /// Finishes the login with what the user pasted: an address, a query string or a bare code.
    pub async fn finish_with_pasted(self, text: &str) -> Result<LoginOutcome, LoginError> {
        let code = redirect::code(text, &self.pkce.state)?;
        self.finish(&code).await
    }

    async fn finish(&self, code: &str) -> Result<LoginOutcome, LoginError> {
        let codex = self.codex;
        let (verifier, redirect) = (&self.pkce.verifier, self.redirect.as_str());
        let grant = token::TokenRequest::Code {
            code,
            verifier,
            redirect,
        };
        let granted = token::send(&*codex.fetch, &codex.endpoints.token, grant);
        let granted = granted.await.map_err(LoginError::Failed)?;
        granted.register(&codex.redactor);
        let _across_processes = codex
            .file
            .lock(LOCK_TIMEOUT)
            .await
            .map_err(LoginError::Failed)?;
        codex
            .file
            .store(&granted, now())
            .map_err(LoginError::Unwritable)?;
        Ok(LoginOutcome {
            account_id: granted.account_id(),
            file: codex.file.path().to_owned(),
        })
    }
}
