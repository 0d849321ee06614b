//! The plugin `http`: the HTTP listener of bub, and the webhook channel.
//!
//! * [`HttpPlugin`]: the plugin that provides the channel.
//! * `server`: the listener, with the limits of connections. `route_table` has the routes of all plugins.
//! * [`settings`]: the settings of the channels.
//! * [`webhook`]: a channel that any HTTP client can use.

mod plugin;
mod request_body;
mod response;
mod route_table;
mod server;
pub mod settings;
pub mod webhook;

pub use plugin::HttpPlugin;
