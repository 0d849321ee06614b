//! Write plugins for bub: hooks, tools, channels, stores, and the program that contains them.
//!
#![doc = include_str!("../README.md")]
//!
//! ## Contents
//!
//! * [`prelude`]: the names that most plugins use; all types of the API are at the root.
//! * [`App`]: a program that runs plugins and commands. `bub_cli::app()` returns an `App` with the
//!   commands and channels of `bub`, to which you can add plugins.
//! * `testing`, with the feature of this name: tests of plugins, channels and stores.
//! * [`output`]: prints the results of commands.
//! * [`kernel`], [`tape`], [`settings`], [`model`], [`agent`], [`gateway`], [`plugin`]: the underlying
//!   crates.

mod app;
#[doc(hidden)]
pub mod app_settings;
#[doc(hidden)]
pub mod args;
mod builtin;
mod command;
mod constructor;
#[doc(hidden)]
pub mod logging;
pub mod output;
#[doc(hidden)]
pub mod plugins;
#[doc(hidden)]
pub mod prompt;
#[doc(hidden)]
pub mod signals;
#[cfg(feature = "testing")]
pub mod testing;
#[doc(hidden)]
pub mod trust;

pub use app::{App, SettingsProblems, check_settings, core_sections};
pub use app_settings::{OMIT_PLUGINS, PLUGIN_SELECTION};
pub use bub_agent as agent;
pub use bub_gateway as gateway;
pub use bub_kernel as kernel;
#[doc(hidden)]
pub use bub_kernel::{__hook, __hook_arg};
pub use bub_kernel::{
    Admission, AdmissionDecision, ApprovalAnswer, ApprovalRequest, ApprovalTerms, BoxError,
    BoxFuture, CancellationToken, Channel, ChannelMessage, ChannelRole, ChannelRouter, CliApp,
    CliCommand, CliContext, CommandArg, CommandArgs, Envelope, Error, ErrorKind,
    ExecutionEnvironment, Fields, Framework, FrameworkRef, HttpBody, HttpRoute, Inbound,
    IntoPlugin, Lifespan, LifespanScope, LlmDecision, LlmRequest, LlmResult, MediaItem, MediaKind,
    MessageHandler, ModelOption, ModelOptions, ModelStream, Outbound, OutputSink, Plugin,
    PluginContext, Prompt, Provided, Result, Role, RouteAccess, RouteRequest, RouteResponse,
    ScopeGuard, Sender, SenderAccess, Service, ServiceContext, SessionId, State, StatePatch,
    SteeringInbox, StreamEvent, Tool, ToolArgument, ToolCall, ToolContext, ToolDecision,
    ToolExposure, ToolOutcome, ToolSpec, Turn, TurnResult, TurnSnapshot, UntrustedSource,
    async_trait, hooks, hooks::Next, http, tool, tools,
};
pub use bub_model as model;
pub use bub_model::{CredentialError, LoginFactory, ProviderLogin};
pub use bub_plugin as plugin;
pub use bub_settings as settings;
pub use bub_settings::{AnySetting, Secret, Section, SettingChoice, SettingKey, Settings};
pub use bub_tape as tape;
pub use bub_tape::{Entry, EntryKind, Sidecar, Tape, TapeContext, TapeStore};
pub use builtin::BuiltinPlugin;
pub use clap;
pub use command::{AppCommand, CommandContext, SettingFlag};
pub use constructor::PluginConstructor;
pub use futures_util as futures;

/// The names that most plugins use. Everything else is at the root of this crate.
pub mod prelude {
    pub use crate::{
        App, CancellationToken, Channel, ChannelMessage, Envelope, Error, Inbound, MessageHandler,
        ModelStream, Next, Outbound, Plugin, PluginContext, Prompt, Result, Secret, Settings,
        State, StreamEvent, Tape, TapeStore, Tool, ToolCall, ToolContext, ToolDecision, Turn,
        async_trait, hooks, tool, tools,
    };
}
