//! Tests of the tool `web.fetch` with servers on loopback.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "tests stop at the first surprise"
)]

mod fetch;
mod turn;
