//! The plugin `http`: HTTP channels for bub.
//!
//! * [`HttpPlugin`]: the plugin that provides the channels.
//! * [`settings`]: the settings of the channels.
//! * [`webhook`]: a channel that any HTTP client can use.

mod plugin;
pub mod settings;
pub mod webhook;

pub use plugin::HttpPlugin;
