//! The login flow: the user signs in on a web page, and bub exchanges the resulting code for tokens.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bub::CredentialError;
use form_urlencoded::Serializer;

use crate::auth::{CodexAuth, LOCK_TIMEOUT, unix_now};
use crate::callback::{self, Listener};
use crate::pkce::Pkce;
use crate::{redirect, token};

/// Error of a login attempt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoginError {
    /// The sign-in response belongs to another attempt: its OAuth `state` is missing or different.
    #[error(
        "the sign-in response belongs to another attempt: its state is missing or different; run the command again and use the new URL"
    )]
    StateMismatch,
    /// The sign-in response contains no code.
    #[error(
        "no code found in the pasted text; paste the URL of the last page (`http://localhost…?code=…&state=…`), its query string, or the code"
    )]
    NoCode,
    /// The user or the service refused the sign-in.
    #[error("sign-in refused: {0}; run the command again and allow access")]
    Refused(String),
    /// The browser was not redirected within this number of seconds.
    #[error("sign-in timed out after {0} seconds; run the command again with a larger `--timeout`")]
    TimedOut(u64),
    /// The listener cannot use its port.
    #[error("cannot use port {port}: {source}; end the other login, or use `--manual`")]
    Port {
        /// The port.
        port: u16,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Stdin ended before the user pasted anything.
    #[error(
        "nothing was pasted: stdin ended; run the command again and paste the URL of the last page"
    )]
    NoInput,
    /// The login file cannot be written.
    #[error("{0}; make it writable, or choose another directory with `--codex-home`")]
    Unwritable(String),
    /// The code could not be exchanged for tokens, or the login file could not be locked.
    #[error("{}{}", .0.text, if .0.is_temporary { "; try again later" } else { "; run the command again" })]
    Failed(CredentialError),
}

/// Result of a successful login.
#[derive(Debug, Clone)]
pub struct LoginOutcome {
    /// The account, if the token names it.
    pub account_id: Option<String>,
    /// The path of the login file.
    pub file: PathBuf,
}

/// A login attempt.
pub struct LoginFlow<'a> {
    codex: &'a CodexAuth,
    pkce: Pkce,
    redirect: String,
    listener: Option<Listener>,
}

impl<'a> LoginFlow<'a> {
    /// Starts a login attempt that receives the code from a browser on this machine.
    pub async fn with_listener(codex: &'a CodexAuth) -> Result<Self, LoginError> {
        let port = codex.endpoints.callback_port;
        let port_error = |source| LoginError::Port { port, source };
        let listener = Listener::bind(port).await.map_err(port_error)?;
        let port = listener.port().map_err(port_error)?;
        Self::new(codex, port, Some(listener))
    }

    /// Starts a login attempt without a listener: the user pastes the code.
    pub fn without_listener(codex: &'a CodexAuth) -> Result<Self, LoginError> {
        Self::new(codex, codex.endpoints.callback_port, None)
    }

    fn new(
        codex: &'a CodexAuth,
        port: u16,
        listener: Option<Listener>,
    ) -> Result<Self, LoginError> {
        let pkce = Pkce::new().map_err(|problem| LoginError::Failed(problem.into()))?;
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

    /// Returns the URL of the sign-in page.
    pub fn sign_in_url(&self) -> String {
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

    /// Waits at most `wait_timeout` for the redirect of the browser, and completes the login.
    pub async fn wait_for_redirect(
        mut self,
        wait_timeout: Duration,
    ) -> Result<LoginOutcome, LoginError> {
        let listener = self.listener.take().ok_or(LoginError::NoCode)?;
        let wait_result =
            tokio::time::timeout(wait_timeout, listener.wait_for_code(&self.pkce.state)).await;
        let code = wait_result.map_err(|_| LoginError::TimedOut(wait_timeout.as_secs()))??;
        self.complete_login(&code).await
    }

    /// Completes the login with the text that the user pasted: a URL, a query string or the code.
    pub async fn complete_with_pasted_text(self, text: &str) -> Result<LoginOutcome, LoginError> {
        let code = redirect::parse_pasted(text, &self.pkce.state)?;
        self.complete_login(&code).await
    }

    async fn complete_login(&self, code: &str) -> Result<LoginOutcome, LoginError> {
        let codex = self.codex;
        let grant = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("code_verifier", self.pkce.verifier.expose()),
            ("redirect_uri", self.redirect.as_str()),
        ];
        let granted = token::request_tokens(&*codex.fetch, &codex.endpoints.token, &grant);
        let granted = granted.await.map_err(LoginError::Failed)?;
        granted.register_secrets(&codex.redactor);
        let _file_lock = codex.file.lock(LOCK_TIMEOUT).await.map_err(|error| {
            if error.is_temporary {
                LoginError::Failed(error)
            } else {
                LoginError::Unwritable(error.text)
            }
        })?;
        codex
            .file
            .store_tokens(&granted, unix_now())
            .map_err(LoginError::Unwritable)?;
        Ok(LoginOutcome {
            account_id: granted.account_id(),
            file: codex.file.path().to_owned(),
        })
    }
}
