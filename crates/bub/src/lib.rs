//! The library for plugin authors: hooks, tools, channels, and the program that contains them.
//!
//! * [`prelude`]: everything that a plugin needs.
//! * [`App`]: a program that runs plugins and commands. `bub_cli::app()` returns an `App` with the
//!   commands and channels of `bub`, to which you can add plugins.
//! * [`kernel`], [`tape`], [`settings`], [`agent`], [`gateway`], [`plugin`]: the underlying crates.
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
//!     App::new().plugin("shout", Shout).run(["bub", "--version"])
//! }
//! ```

mod app;
#[doc(hidden)]
pub mod app_settings;
#[doc(hidden)]
pub mod args;
mod builtin;
mod command;
#[doc(hidden)]
pub mod logging;
#[doc(hidden)]
pub mod output;
#[doc(hidden)]
pub mod plugins;
#[doc(hidden)]
pub mod prompt;
#[doc(hidden)]
pub mod signals;

pub use app::{App, SettingsProblems, check_settings, core_sections};
pub use bub_agent as agent;
pub use bub_gateway as gateway;
pub use bub_kernel as kernel;
#[doc(hidden)]
pub use bub_kernel::{__hook, __hook_arg};
pub use bub_kernel::{BoxFuture, Plugin, hooks, tool, tools};
pub use bub_plugin as plugin;
pub use bub_settings as settings;
pub use bub_tape as tape;
pub use builtin::BuiltinPlugin;
pub use clap;
pub use command::{AppCommand, CommandContext};
pub use futures_util as futures;

/// Everything that a plugin needs.
pub mod prelude {
    pub use bub_kernel::{
        Admission, AdmissionDecision, BoxError, BoxFuture, CancellationToken, Channel,
        ChannelMessage, ChannelRouter, CliApp, CliCommand, CliContext, CommandArg, CommandArgs,
        Envelope, Error, ErrorKind, Fields, Framework, FrameworkRef, Inbound, Lifespan,
        LifespanScope, LlmDecision, LlmRequest, LlmResult, MediaItem, MediaKind, MessageHandler,
        ModelOption, ModelOptions, ModelStream, Outbound, Plugin, PluginContext, Prompt, Provided,
        Result, ScopeGuard, SessionId, State, StatePatch, SteeringInbox, StreamEvent, Tool,
        ToolArgument, ToolCall, ToolContext, ToolDecision, ToolOutcome, ToolSpec, Turn, TurnResult,
        TurnSnapshot,
        hooks::{Next, args, point},
    };
    pub use bub_macros::{hooks, tool, tools};
    pub use bub_settings::{Secret, Settings};
    pub use bub_tape::{Entry, Sidecar, Tape, TapeContext, TapeStore};

    pub use crate::App;
}
