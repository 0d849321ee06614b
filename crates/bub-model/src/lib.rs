//! Models: every provider people use, streamed faithfully, failing well.
//!
//! - [`ChatRequest`] is what a step asks, [`ModelEvent`] what comes back piece by piece, and
//!   [`Completion`] the whole of it; [`Accumulator`] turns the one into the other.
//! - [`WireFormat`] translates both for the wire formats, without any input or output of its own;
//!   [`Quirks`] is how a provider differs from the format it speaks.
//! - [`ModelError`] says what to do about a failure, [`classify`](classify::classify) decides it.
//! - [`ModelClient`] makes the call: one HTTP client, retries, timeouts, cancellation, and [`Candidates`] tried in
//!   order.
//! - [`sse`] cuts bytes into server-sent events.
//! - [`settings`] declares what the configuration says about models.
//! - [`Models`] is where a call starts: which model runs ([`ModelChoice`]), and where and with which key
//!   ([`Endpoint`]). [`Catalog`] has the providers, [`codex`] the login.

mod api_keys;
mod base_url;
mod catalog;
pub mod classify;
mod client;
mod client_args;
pub mod codex;
mod completion;
mod endpoint;
mod error;
mod event;
mod fallback;
pub mod fetch;
mod finish;
mod http;
mod local;
mod model_choice;
mod model_id;
mod models;
mod models_report;
mod quirks;
mod request;
pub mod settings;
pub mod sse;
mod usage;
pub mod wire;

pub use api_keys::KeySource;
pub use base_url::BaseUrl;
pub use catalog::{Catalog, LoginMethod, PROVIDER_ROWS, Price, Provider, ProviderRow};
pub use client::{Backoff, CallOptions, ModelClient, ResponseBody};
pub use completion::{Accumulator, Completion, InvalidToolCall};
pub use endpoint::{AccessError, Endpoint};
pub use error::{ModelError, ModelErrorKind, RecoveryAction, looks_like_html, short_message};
pub use event::{ModelEvent, Retry, ToolCallDelta};
pub use fallback::{Candidates, EndpointSource, ModelEventStream};
pub use finish::FinishReason;
pub use http::{HttpOptions, Proxies};
pub use local::LocalServer;
pub use model_choice::{ChoiceReason, ModelChoice};
pub use model_id::{ModelId, ParseModelIdError};
pub use models::Models;
pub use models_report::{ModelsReport, ProviderReport};
pub use quirks::{EffortForm, Quirks, REASONING_FIELDS};
pub use request::ChatRequest;
pub use usage::Usage;
pub use wire::{HttpRequest, StreamDecoder, WireFormat};
