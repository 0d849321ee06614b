//! HTTP for bub: the plugin `http`.
//!
//! * [`HttpPlugin`]: the plugin that provides the channels.
//! * [`settings`]: the settings of the channels.
//! * [`webhook`]: the channel that any program can use.

mod plugin;
pub mod settings;
pub mod webhook;

pub use plugin::HttpPlugin;
