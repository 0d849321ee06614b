//! Models: every provider people use, streamed faithfully, failing well.
//!
//! - [`ChatRequest`] is what a step asks, [`ModelEvent`] what comes back piece by piece, and
//!   [`Completion`] the whole of it; [`Accumulator`] turns the one into the other.
//! - [`Wire`] translates both for the wire formats, without any input or output of its own;
//!   [`Quirks`] is how a provider differs from the format it speaks.
//! - [`ModelError`] says what to do about a failure, [`classify`](classify::classify) decides it.
//! - [`sse`] cuts bytes into server-sent events.

pub mod classify;
mod completion;
mod error;
mod event;
mod finish;
mod quirks;
mod request;
pub mod sse;
mod usage;
pub mod wire;

pub use completion::{Accumulator, BrokenCall, Completion};
pub use error::{Action, ErrorKind, ModelError, looks_like_html, short_message};
pub use event::{ModelEvent, ToolCallDelta};
pub use finish::FinishReason;
pub use quirks::{EffortForm, Quirks, REASONING_FIELDS};
pub use request::ChatRequest;
pub use usage::Usage;
pub use wire::{HttpRequest, StreamDecoder, Wire};
