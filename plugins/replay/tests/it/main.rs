//! Tests of the provider `replay` and of replays.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "tests stop at the first surprise"
)]

mod harness;
mod provider;
mod replay;
