//! External plugins: plugins that run in their own process, in any language. The host is the bub process that starts
//! them.
//!
//! * `peer`: one end of a JSON-RPC connection. `codec` and `wire_hook` convert the arguments and results of every hook
//!   in the hook table to and from JSON.
//! * [`PluginProcess`]: an external plugin. It starts when it is first needed, restarts after a failure, and ends when
//!   its host exits. `hook`, `stream`, `tool`, `channel` and `command` connect it to the kernel; `callbacks` answers
//!   its requests.
//! * [`Descriptor`]: the hooks, tools, channels and commands that a plugin provides.
//! * [`InstalledPlugins`]: the plugins added with `bub plugin add`.
//! * [`protocol_schema`]: the plugin protocol as a JSON Schema.
//! * [`serve`]: serves a plugin that is written in Rust as an external plugin.

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
mod remote_environment;
mod remote_store;
mod rpc_message;
mod schema;
mod serve;
mod stderr;
mod stream;
mod tape_requests;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod tool;
mod turn_requests;
mod wire_hook;

use std::sync::Arc;

use bub_kernel::Result;

pub use descriptor::{
    ChannelDecl, Descriptor, HookDecl, MIN_PROTOCOL_VERSION, PROTOCOL_VERSION, PluginNeeds,
    ToolDecl,
};
pub use installed::{DamagedRecord, InstalledPlugin, InstalledPlugins, PythonPackage, fingerprint};
pub use manifest::{MANIFEST_FILE, Manifest, Permissions, SettingDecl};
pub use parse::quote_for_shell;
pub use pin::{PluginPin, compute_pin, pin_mismatch};
pub use plugin::ExternalPlugin;
pub use process::{HostContext, Limits, PluginConfig, PluginGroup, PluginProcess};
pub use schema::protocol_schema;
pub use serve::{PROTOCOL_VARIABLE, serve};

/// A question that a plugin asks the user at the terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginQuestion {
    /// Text of the question.
    pub text: String,
    /// Input that is used if the user enters nothing.
    pub default: Option<String>,
    /// Whether the terminal hides what the user types.
    pub is_secret: bool,
    /// Answers to choose from. If empty, the user can enter any text.
    pub choices: Vec<String>,
    /// Whether the user can choose several answers, or none.
    pub is_multiple: bool,
    /// Whether the question is not shown and the answer is the next line of stdin, unchanged. No answer is the end of stdin.
    pub is_raw: bool,
}

/// Function that asks the user a question and returns the answer, or the answers if the user can choose several.
pub type AskFn = dyn Fn(&PluginQuestion) -> Result<Vec<String>> + Send + Sync;

/// Asks the user the questions that plugins send. The program that hosts the plugins sets the handler in the
/// [`HostContext`].
#[derive(Clone)]
pub struct QuestionHandler(pub Arc<AskFn>);

impl std::fmt::Debug for QuestionHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QuestionHandler")
    }
}
