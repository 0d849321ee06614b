//! The gateway through its public surface, with channels and a model that are made for it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "tests stop at the first surprise"
)]

mod admission;
mod channels;
mod contract;
mod debounce;
mod harness;
mod journal;
mod lanes;
mod memory;
mod outbox;
mod recovery;
mod sent_by_tool;
mod switching;
