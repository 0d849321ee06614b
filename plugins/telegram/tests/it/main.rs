//! Tests of the Telegram channel with a fake Bot API server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "tests stop at the first surprise"
)]

mod basics;
mod daily_use;
mod delivery;
mod failures;
mod groups;
mod harness;
mod hostile;
mod many_chats;
mod text;
