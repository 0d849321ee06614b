//! The Codex login: models of an account, without an API key.
//!
//! * [`login`]: the login for [`App::login`](bub::App::login). Model calls use it if the provider has no key.
//! * [`command`]: the command `bub login`, with which users sign in.
//! * [`settings`]: the setting `codex_home`.
//! * [`CodexAuth`]: the stored tokens. It refreshes them shortly before they expire.
//! * [`LoginFlow`]: one sign-in.
//!
//! The tokens are in the file of the Codex CLI. bub preserves all other content of that file.

mod auth;
mod auth_file;
mod callback;
mod command;
mod flow;
mod jwt;
mod pkce;
mod provider;
mod redirect;
pub mod settings;
mod token;

pub use auth::{CodexAuth, OAuthEndpoints};
pub use auth_file::OAuthTokens;
#[doc(hidden)]
pub use auth_file::read_login;
pub use command::command;
pub use flow::{LoginError, LoginFlow, LoginOutcome};
pub use provider::{DEFAULT_MODEL, PROVIDER, login};
