//! The kernel of bub. It runs turns, and every stage of a turn is a hook.
//!
//! * [`Envelope`], [`State`], [`Prompt`], [`ModelStream`], [`Error`]: the types that hooks receive and return.
//! * [`hooks`](mod@hooks): the table of all hooks, the set of their implementations, and the rules for calling them.
//! * [`Plugin`]: a set of hook implementations. Write one with [`hooks`](macro@hooks) on an `impl` block.
//! * [`Framework`]: registers plugins, [runs turns](Framework::process_inbound), and opens the [`RunningScope`], whose
//!   resources stay open across turns.
//! * [`tool`](mod@tool): functions that the model can call. Write one with [`tool`](macro@tool) on a function. To write
//!   several that share data, put [`tools`] on the `impl` block of a type.
//! * [`Channel`], [`Service`], [`ChannelRouter`], [`Tool`], [`SteeringInbox`]: traits that other crates implement.
//! * [`HttpRoute`]: a path of the HTTP listener.
//! * [`settings`]: settings that several crates read.
//!
//! ```
//! use bub_kernel::{Envelope, Framework, Prompt, hooks};
//!
//! struct Echo;
//!
//! #[hooks(crate = bub_kernel)]
//! impl Echo {
//!     async fn run_model(&self, prompt: &Prompt) -> Option<String> {
//!         Some(format!("echo: {}", prompt.text()))
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let framework = Framework::builder().plugin("echo", Echo).build();
//! let result = framework.process_inbound(Envelope::from_text("hi")).await.unwrap();
//! assert_eq!(result.model_output, "echo: hi");
//! # });
//! ```
//!
//! The kernel opens no network connections and starts no processes. Other crates do that.

mod admission;
mod approval;
mod channel;
mod channel_message;
mod cli;
mod envelope;
mod environment;
mod error;
mod fields;
mod framework;
pub mod hooks;
mod ids;
mod inbound;
mod lifespan;
mod llm;
mod media;
mod outbound;
mod pipeline;
mod plugin;
mod preview;
mod prompt;
mod provenance;
mod providers;
mod receipt;
mod route;
mod router;
mod scope;
mod sender;
mod service;
pub mod settings;
mod state;
mod steering;
mod stream;
#[cfg(feature = "testing")]
pub mod testing;
pub mod tool;
mod turn;
mod turn_tape;

pub use admission::{Admission, AdmissionDecision, TurnSnapshot};
pub use approval::{
    ApprovalAnswer, ApprovalRequest, ApprovalTerms, Approvals, MAX_EMPTY_LINES,
    PendingApprovalGuard, escape_invisible, is_empty_line, shorten_empty_lines, shorten_spaces,
};
pub use bub_macros::{hooks, tool, tools};
pub use channel::{Channel, ChannelRole, MessageHandler, SenderAccess};
pub use channel_message::ChannelMessage;
pub use cli::{CliApp, CliCommand, CliContext, CliHandler, CommandArg, CommandArgs, CommandSpec};
pub use envelope::{Envelope, MessageKind};
pub use environment::{ExecutionEnvironment, OutputSink};
pub use error::{BoxError, Error, ErrorKind, HookOrigin, Result};
pub use fields::{FieldName, Fields};
pub use framework::{Framework, FrameworkBuilder, FrameworkRef};
pub use ids::{MessageId, ReplyId, SessionId, TurnId};
pub use inbound::{Inbound, InboundAttempt, ReplyTarget};
pub use lifespan::{Lifespan, LifespanScope};
pub use llm::{LlmDecision, LlmRequest, LlmResult, ModelOption, ModelOptions};
pub use media::{MediaFetcher, MediaItem, MediaKind, audio_format, audio_mime};
pub use outbound::{DeliveryAttempt, Outbound, ReplyOrigin};
pub use pipeline::TurnResult;
pub use plugin::{IntoPlugin, Plugin, PluginContext, PluginState, PluginStatus};
pub use preview::{PreviewedRequest, RequestPreview};
pub use prompt::{Prompt, command_line, command_prefix, set_command_prefix};
pub use provenance::{Provenance, UntrustedSource};
pub use receipt::{DropReason, InboundReceipt, MessageOutcome};
pub use route::{
    HttpBody, HttpRoute, RouteAccess, RouteRequest, RouteResponse, route_error_status,
};
pub use router::ChannelRouter;
pub use scope::{Provided, RunningScope, ScopeGuard};
pub use sender::{Role, Sender};
pub use service::{Service, ServiceContext};
pub use state::{RUNTIME_PREFIX, State, StatePatch, WORKSPACE_KEY};
pub use steering::{SteeredMessage, SteeringInbox};
pub use stream::{ModelStream, StreamEvent};
pub use tokio_util::sync::CancellationToken;
pub use tool::{
    StepRequest, StepRequests, Tool, ToolArgument, ToolCall, ToolCaller, ToolContext, ToolDecision,
    ToolExposure, ToolOutcome, ToolSpec, run_tool,
};
pub use turn::{Stage, Turn, TurnReport};
pub use turn_tape::{
    CallProgress, InterruptedTurn, ModelStageEnd, ResumePoint, TurnTape, error_entry, tape_error,
};

pub use bub_tape::async_trait;
pub use bytes::Bytes;
/// A boxed future that can move between threads. Traits in this crate return it from asynchronous methods.
pub use futures_util::future::BoxFuture;
pub use http;
