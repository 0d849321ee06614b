//! HTTP for bub: the plugin `http`.
//!
//! * [`HttpPlugin`]: the plugin that provides the channels.
//! * [`webhook`]: the channel that any program can use.

mod plugin;
pub mod webhook;

pub use plugin::HttpPlugin;
