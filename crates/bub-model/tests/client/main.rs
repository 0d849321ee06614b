//! Tests of the client with a scripted server: requests, retries, timeouts and errors.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests panic on failure and read the path of the recordings from the environment"
)]

mod basics;
mod client_args;
mod damage;
mod encoding;
mod fallback;
mod messages;
mod recordings;
mod retry;
mod secrets;
mod support;
mod time;
mod tls;
