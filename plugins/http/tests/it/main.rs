//! Tests of the listener and the webhook channel, with and without a gateway.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "tests"
)]

mod routes;
mod webhook;
mod webhook_callback;
mod webhook_gateway;
mod webhook_limits;
mod webhook_support;
