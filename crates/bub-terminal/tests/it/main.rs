//! Integration tests of the terminal output.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests stop at the first surprise"
)]

mod commonmark;
mod markdown;
mod screen;
mod view;
