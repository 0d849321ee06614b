//! Tests of the wire formats with recordings of real servers, scenarios and damaged data.

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
    reason = "the tests print tables"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "the path of the recordings is not a setting of bub"
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
