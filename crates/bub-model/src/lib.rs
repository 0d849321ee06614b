//! Model calls: providers, wire formats, streaming, errors, retries, API keys and logins.
//!
//! - [`Models`] is the starting point. It chooses the model ([`ModelChoice`]) and finds its base URL and key
//!   ([`Endpoint`]). [`Catalog`] lists the providers; plugins add a [`ProviderLogin`].
//! - [`ModelClient`] makes the call. It sends the request, retries, applies timeouts, supports cancellation, and tries
//!   [`Candidates`] in order.
//! - [`ChatRequest`] is the input of a call and a stream of [`ModelEvent`]s its output. [`Accumulator`] collects the
//!   events into a [`Completion`].
//! - [`WireFormat`] encodes requests and decodes streams without doing any I/O. [`Quirks`] describe how a provider
//!   deviates from its wire format.
//! - [`ModelError`] describes a failure and what to do about it. [`classify`](classify::classify) builds it from a
//!   provider's error response.
//! - [`sse`] parses server-sent events.
//! - [`settings`] declares the settings of this crate.

mod api_keys;
mod base_url;
mod catalog;
pub mod classify;
mod client;
mod client_args;
mod completion;
mod endpoint;
mod error;
mod event;
mod fallback;
pub mod fetch;
mod finish;
mod http;
mod listener;
mod local;
mod login;
mod media_limits;
mod model_choice;
mod model_id;
mod models;
mod models_report;
mod quirks;
mod request;
pub mod settings;
mod shell_words;
pub mod sse;
#[cfg(feature = "testing")]
pub mod testing;
mod usage;
pub mod wire;

pub use api_keys::KeySource;
pub use base_url::BaseUrl;
pub use catalog::{Catalog, Price, Provider};
pub use client::{Backoff, CallOptions, ModelClient, Recording, ResponseBody};
pub use completion::{Accumulator, Completion, InvalidToolCall};
pub use endpoint::{AccessError, Endpoint};
pub use error::{
    ModelError, ModelErrorKind, RecoveryAction, Result, looks_like_html, short_message,
};
pub use event::{ModelEvent, Retry, ToolCallDelta};
pub use fallback::{Candidates, EndpointSource, ModelEventStream};
pub use finish::FinishReason;
pub use http::{HttpOptions, Proxies};
pub use local::LocalServer;
pub use login::{CredentialError, LoginFactory, ProviderLogin};
pub use media_limits::MediaLimits;
pub use model_choice::{ChoiceReason, ModelChoice};
pub use model_id::{ModelId, ParseModelIdError};
pub use models::Models;
pub use models_report::{ModelsReport, ProviderReport};
pub use quirks::{EffortForm, Quirks, REASONING_FIELDS};
pub use request::ChatRequest;
pub use shell_words::split_words;
pub use usage::Usage;
pub use wire::{HttpRequest, StreamDecoder, WireFormat};
