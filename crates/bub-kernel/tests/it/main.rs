//! The behavior of the kernel, with one module per part of the specification.
//!
//! A tag such as `S-6` in a comment refers to a behavior in `docs/spec`. If bub differs from the Python version, the
//! comment says so.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a failing test should panic"
)]

mod admission_and_steering;
mod allocations;
mod calling;
mod cancel;
mod channel_message;
mod compile_errors;
mod dispatch;
mod envelope;
mod errors;
mod fields_and_state;
mod hook_order;
mod intercept;
mod intercept_failures;
mod laws;
mod lifespan;
mod load_state;
mod macros;
mod media;
mod model_stage;
mod next;
mod observers;
mod panics;
mod plugins;
mod prompt;
mod provenance;
mod providers;
mod render;
mod save_state;
mod scope;
mod session;
mod stream_events;
mod stream_secrets;
mod streaming;
mod support;
mod table;
mod ten_thousand;
mod tools_block;
mod tools_contract;
mod turn_errors;
mod turn_order;
mod turn_record;
