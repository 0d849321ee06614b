//! Providers, keys, the choice of the model and the login, seen from outside. Loopback only.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::needless_pass_by_value,
    missing_docs,
    reason = "tests stop at the first surprise"
)]

mod calls;
mod catalogue;
mod choice;
mod codex;
mod docs;
mod given;
mod identifiers;
mod keys;
mod login;
mod report;
