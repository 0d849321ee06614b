//! Plugins in other processes, in any language.
//!
//! * `peer`: one end of a conversation in JSON-RPC; `codec` and `wire` say how arguments and results of hooks are written
//!   in it, for every row of the hook table.
//! * [`PluginProcess`]: a plugin, started when first needed, watched, ended with its host. `hook`, `stream`, `tool`, `channel` and
//!   `command` are what the kernel sees of it; `callbacks` is what it may ask for.
//! * [`Descriptor`]: what a plugin says about itself; [`InstalledPlugins`]: the plugins that were added.
//! * [`schema`]: the protocol as a JSON Schema.
//! * [`serve`]: a plugin written in Rust, in a process of its own.

mod callbacks;
mod channel;
mod codec;
mod command;
mod descriptor;
mod hook;
mod installed;
mod manifest;
mod parse;
mod peer;
mod pin;
mod plugin;
mod process;
mod rpc_message;
mod schema;
mod serve;
mod stderr;
mod stream;
mod tool;
mod wire_hook;

use std::sync::Arc;

use bub_kernel::Result;

pub use descriptor::{ChannelDecl, Descriptor, HookDecl, PROTOCOL_VERSION, ToolDecl};
pub use installed::{DamagedRecord, InstalledPlugin, InstalledPlugins};
pub use manifest::{MANIFEST_FILE, Manifest, SettingDecl};
pub use parse::quoted;
#[doc(hidden)]
pub use peer::read_for_fuzzing;
pub use pin::{PluginPin, pin, pin_mismatch};
pub use plugin::ExternalPlugin;
pub use process::{HostContext, Limits, PluginConfig, PluginProcess};
pub use schema::schema;
pub use serve::{serve, serve_with};

/// A question of a plugin to the person at the terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginQuestion {
    /// What is asked.
    pub text: String,
    /// The answer that is taken when there is none.
    pub default: Option<String>,
    /// Whether the answer must not be seen.
    pub is_secret: bool,
}

/// Gets an answer to a question.
pub type AskFn = dyn Fn(&PluginQuestion) -> Result<String> + Send + Sync;

/// Asks the user at the terminal. The program puts it into the [`HostContext`] of its plugins.
#[derive(Clone)]
pub struct QuestionHandler(pub Arc<AskFn>);

impl std::fmt::Debug for QuestionHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QuestionHandler")
    }
}
