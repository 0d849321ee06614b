//! Integration tests of the Codex login. They use loopback connections only.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    clippy::indexing_slicing,
    reason = "tests panic on failure"
)]

mod fixture;
mod login;
mod tokens;
