//! The Telegram channel against a Bot API server of our own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "tests stop at the first surprise"
)]

mod basics;
mod crowd;
mod delivery;
mod hostile;
mod trouble;
mod world;
