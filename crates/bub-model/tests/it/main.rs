//! Integration tests: the wire formats, the client, and providers with their keys and logins. They use loopback
//! connections only.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::needless_pass_by_value,
    clippy::print_stdout,
    reason = "tests panic on failure and print tables"
)]

mod client;
mod providers;
mod wire;
