//! Tests of text conversion: Markdown to messages, and messages to the content that the model reads.

mod checker;
mod html;
mod html_laws;
mod inbound;
mod inbound_media;
