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
mod delivery;
mod failures;
mod harness;
mod hostile;
mod many_chats;
