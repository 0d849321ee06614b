//! Plugins in other processes, in any language.
//!
//! * `peer`: one end of a conversation in JSON-RPC; `codec` and `wire` say how arguments and results of hooks are written
//!   in it, for every row of the hook table.
//! * [`External`]: a plugin, started when first needed, watched, ended with its host. `hook`, `stream`, `tool`, `channel` and
//!   `command` are what the kernel sees of it; `callbacks` is what it may ask for.
//! * [`Descriptor`]: what a plugin says about itself; [`Installed`]: the plugins that were added.
//! * [`schema`]: the protocol as a JSON Schema.
//! * [`serve`]: a plugin written in Rust, in a process of its own.

mod callbacks;
mod channel;
mod codec;
mod command;
mod descriptor;
mod digest;
mod errors;
mod external;
mod hook;
mod installed;
mod manifest;
mod message;
mod peer;
mod plugin;
mod reading;
mod schema;
mod serve;
mod stream;
mod tool;
mod wire;

use std::sync::Arc;

use bub_kernel::Result;

pub use descriptor::{ChannelEntry, Descriptor, HookEntry, PROTOCOL, ToolEntry};
pub use digest::{Pin, changed, pin};
pub use external::{External, Host, Limits, Setup};
pub use installed::{Damaged, Installed, Record};
pub use manifest::{MANIFEST, Manifest, SettingEntry};
#[doc(hidden)]
pub use peer::hear;
pub use plugin::ExternalPlugin;
pub use reading::quoted;
pub use schema::schema;
pub use serve::{serve, serve_with};

/// A question of a plugin to the person at the terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// What is asked.
    pub text: String,
    /// The answer that is taken when there is none.
    pub default: Option<String>,
    /// Whether the answer must not be seen.
    pub is_secret: bool,
}

/// Gets an answer to a question.
pub type Ask = dyn Fn(&Question) -> Result<String> + Send + Sync;

/// Asks the user at the terminal. The program puts it into the [`Host`] of its plugins.
#[derive(Clone)]
pub struct Asker(pub Arc<Ask>);

impl std::fmt::Debug for Asker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Asker")
    }
}
