//! The Telegram channel.
//!
//! * [`html`]: Markdown as messages that the platform accepts.
//! * [`inbound`]: what arrives, as the model reads it.

pub mod html;
pub mod inbound;
