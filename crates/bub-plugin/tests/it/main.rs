//! Tests of external plugins through the kernel.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    missing_docs,
    reason = "tests"
)]

mod conformance;
mod harness;
mod hostile;
mod python;
mod start;
