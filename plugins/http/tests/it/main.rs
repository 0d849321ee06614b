//! The webhook channel, alone and with a gateway.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "tests stop at the first surprise"
)]

mod webhook;
mod webhook_callback;
mod webhook_gateway;
mod webhook_limits;
mod webhook_support;
