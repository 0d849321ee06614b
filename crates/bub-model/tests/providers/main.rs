//! Integration tests of providers, keys, the choice of the model and the login. They use loopback connections only.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::needless_pass_by_value,
    missing_docs,
    reason = "tests panic on failure"
)]

mod api_keys;
mod calls;
mod catalog;
mod codex;
mod docs;
mod fixture;
mod identifiers;
mod login;
mod model_choice;
mod models_report;
