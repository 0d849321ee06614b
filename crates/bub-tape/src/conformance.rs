//! The suite any store must pass.
//!
//! Call [`check`] with a function that makes an empty store; it panics with the broken promise.
#![expect(
    clippy::panic,
    clippy::expect_used,
    reason = "a conformance suite reports by panicking, as tests do"
)]
