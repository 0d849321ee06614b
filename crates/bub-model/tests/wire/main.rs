//! The wire formats, tried with recordings of real servers, with made-up scenarios and with damage.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test is a panic"
)]
#![allow(clippy::indexing_slicing, reason = "a failed test is a panic")]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tables for whoever runs the tests"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "where the recordings are is not a setting of bub"
)]

mod conformance;
mod damage;
mod dialects;
mod encode;
mod fixtures;
mod media;
mod properties;
mod recordings;
mod reference;
mod replay;
mod requests;
mod scenarios;
mod support;
