//! A hook-first agent runtime, as a library: build your own `bub` with your plugins linked in.
//!
//! * [`prelude`]: everything a plugin needs.
//! * [`App`]: the whole program, to which you add plugins.
//! * [`kernel`](bub_kernel), [`tape`](bub_tape), [`settings`](bub_settings), [`agent`](bub_agent),
//!   [`plugin`](bub_plugin): the parts.
//!
//! ```
//! use bub::prelude::*;
//!
//! struct Shout;
//!
//! #[hooks]
//! impl Shout {
//!     async fn build_prompt(&self, next: Next<'_, point::BuildPrompt>) -> Result<Option<Prompt>> {
//!         Ok(next.call().await?.map(|prompt| prompt.text().to_uppercase().into()))
//!     }
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     bub::app().plugin("shout", Shout).run(["bub", "--version"])
//! }
//! ```

mod app;
mod arguments;
mod builtin;
mod cli;
mod external;
mod logging;
mod signals;

pub use app::App;
pub use bub_agent as agent;
pub use bub_kernel as kernel;
#[doc(hidden)]
pub use bub_kernel::{__hook, __hook_arg};
pub use bub_kernel::{BoxFuture, Plugin, hooks, tool};
pub use bub_plugin as plugin;
pub use bub_settings as settings;
pub use bub_tape as tape;
pub use clap;
pub use futures_util as futures;

/// The stock program, to which you add plugins.
pub fn app() -> App {
    App::new()
}

/// Everything a plugin needs.
pub mod prelude {
    pub use bub_kernel::{
        Admission, BoxError, BoxFuture, CancellationToken, Channel, ChannelMessage, ChannelRouter,
        CliApp, CliCommand, CliContext, Decision, Envelope, Error, ErrorKind, Fields, Framework,
        FrameworkRef, Lifespan, LifespanScope, LlmDecision, LlmRequest, LlmResult, MediaItem,
        MediaKind, MessageHandler, ModelOption, ModelOptions, ModelStream, Plugin, PluginContext,
        Prompt, Provided, Result, ScopeGuard, State, StatePatch, SteeringInbox, StreamEvent, Tool,
        ToolArgument, ToolCall, ToolContext, ToolDecision, ToolOutcome, ToolSpec, TurnOptions,
        TurnResult, TurnSnapshot,
        hooks::{Next, args, point},
    };
    pub use bub_macros::{hooks, tool};
    pub use bub_settings::{Secret, Settings};
    pub use bub_tape::{Entry, Sidecar, Tape, TapeContext, TapeStore};

    pub use crate::App;
}

/// The Rust in the documents compiles.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../README.md")]
    struct Readme;

    #[doc = include_str!("../../../docs/plugins.md")]
    struct Plugins;

    #[doc = include_str!("../../../docs/first-plugin-rust.md")]
    struct FirstPlugin;
}
