//! Tests of the test support.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may stop at the first surprise"
)]

#[cfg(target_os = "linux")]
mod budgets;
mod model_server;
