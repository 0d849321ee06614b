//! Tests of text conversion: Markdown to messages, and messages to the content that the model reads.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "tests stop at the first surprise"
)]

mod checker;
mod html;
mod html_laws;
mod inbound;
mod inbound_media;
