//! Tests of the gateway through its public API, with fake channels and a fake model.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "tests"
)]

mod accepting;
mod admission;
mod channels;
mod contract;
mod debounce;
#[cfg(target_os = "linux")]
mod growth;
mod harness;
mod journal;
mod lanes;
mod memory;
mod outbox;
mod pairing;
mod recovery;
mod sent_by_tool;
mod services;
mod switching;
