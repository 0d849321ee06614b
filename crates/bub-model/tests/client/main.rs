//! The client against a scripted server: what is sent, what is tried again, and how calls end.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test may stop at the first surprise, and reads where the recordings are"
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
