//! Models: every provider people use, streamed faithfully, failing well.
//!
//! - [`ChatRequest`] is what a step asks, [`ModelEvent`] what comes back piece by piece, and
//!   [`Completion`] the whole of it; [`Accumulator`] turns the one into the other.
//! - [`Wire`] translates both for the wire formats, without any input or output of its own;
//!   [`Quirks`] is how a provider differs from the format it speaks.
//! - [`ModelError`] says what to do about a failure, [`classify`](classify::classify) decides it.
//! - [`ModelClient`] makes the call: one HTTP client, retries, timeouts, cancellation, and [`Candidates`] tried in
//!   order.
//! - [`sse`] cuts bytes into server-sent events.
//! - [`settings`] declares what the configuration says about models.
//! - [`Models`] is where a call starts: which model runs ([`Choice`]), and where and with which key
//!   ([`Endpoint`]). [`Catalogue`] has the providers, [`codex`] the login.

mod access;
mod base_url;
mod catalogue;
mod choice;
pub mod classify;
mod client;
mod client_args;
pub mod codex;
mod completion;
mod error;
mod event;
mod fallback;
pub mod fetch;
mod finish;
mod http;
mod keys;
mod local;
mod model_id;
mod models;
mod quirks;
mod report;
mod request;
pub mod settings;
pub mod sse;
mod usage;
pub mod wire;

pub use access::{AccessError, Endpoint};
pub use base_url::BaseUrl;
pub use catalogue::{Catalogue, Login, Price, Provider, ROWS, Row};
pub use choice::{Choice, Why};
pub use client::{Backoff, Body, CallOptions, ModelClient};
pub use completion::{Accumulator, BrokenCall, Completion};
pub use error::{Action, ErrorKind, ModelError, looks_like_html, short_message};
pub use event::{ModelEvent, Retry, ToolCallDelta};
pub use fallback::{Candidates, EndpointSource, ModelStream};
pub use finish::FinishReason;
pub use http::{HttpOptions, Proxies};
pub use keys::KeySource;
pub use local::LocalServer;
pub use model_id::{ModelId, NotAModel};
pub use models::Models;
pub use quirks::{EffortForm, Quirks, REASONING_FIELDS};
pub use report::{ProviderReport, Report};
pub use request::ChatRequest;
pub use usage::Usage;
pub use wire::{HttpRequest, StreamDecoder, Wire};
