//! Tests of settings through the public API: what users write and what they get.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of a test may fail the test"
)]

mod config_file;
mod deprecated;
mod derive;
mod edit;
mod environment;
mod errors;
mod fixture;
mod lookup;
mod precedence;
mod sample;
mod secrets;
mod sections;
mod trust;
mod warnings;
mod workspace;
