//! Tests of tapes, stores, views and searches.
#![allow(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests"
)]

mod any_file;
mod chain;
mod check;
mod faults;
mod laws;
mod lines;
mod processes;
mod python;
mod query;
mod recall;
mod recall_data;
mod repair;
mod search;
mod search_index;
mod slots;
mod stores;
mod tape;
mod view;
mod view_laws;
mod view_pairs;
mod view_support;
