//! The table of all hooks.
//!
//! A row has: method name, type name, kind, arguments, arguments that are not passed to external plugins, result. The
//! rows generate the argument structs, the type `HookSet`, the checks of `#[hooks]`, the output of `bub hooks` and the
//! reference page. To add a hook, add a row.

use std::{path::Path, sync::Arc};

use bub_tape::{Sidecar, Tape, TapeContext, TapeStore};
use serde_json::Value;

use super::{
    Chained, ChainedSync, HookArg, HookKind, HookPoint, HookSpec, Implementation, Next,
    failures::Failures, guard::HOOK_TIMEOUT,
};
use crate::{
    BoxFuture,
    admission::{Admission, TurnSnapshot},
    approval::{ApprovalAnswer, ApprovalRequest},
    channel::{Channel, MessageHandler},
    cli::CliApp,
    envelope::Envelope,
    environment::ExecutionEnvironment,
    error::{Error, Result},
    ids::SessionId,
    inbound::Inbound,
    llm::{LlmDecision, LlmRequest, LlmResult, ModelOptions},
    prompt::Prompt,
    route::HttpRoute,
    scope::{Provided, ScopeGuard},
    service::Service,
    state::{State, StatePatch},
    steering::SteeringInbox,
    stream::ModelStream,
    tool::{ToolCall, ToolDecision, ToolOutcome},
    turn::Turn,
};

macro_rules! hook_table {
    (
        ($d:tt)
        $(
            $(#[doc = $doc:literal])+
            $name:ident $point:ident: $kind:ident $($sync:ident)? ($($arg:ident: $ty:ty),*) {$($own:ident: $own_ty:ty)?} -> $out:ty;
        )*
    ) => {
        /// One type per hook.
        pub mod point {
            $(
                $(#[doc = $doc])+
                #[derive(Debug)]
                pub enum $point {}
            )*
        }

        /// The arguments of each hook, in a struct with the hook's type name.
        pub mod args {
            use super::*;
            $( hook_table!(@args $point $(#[doc = $doc])+ ($($arg: $ty,)* $($own: $own_ty,)?)); )*
        }

        /// The implementations of all hooks. Those of one hook are in registration order.
        #[derive(Default)]
        pub struct HookSet {
            pub(super) failures: Failures,
            $( $name: Vec<Implementation<point::$point>>, )*
        }

        /// The descriptions of all hooks, in the order of the hook table.
        pub const HOOKS: &[&HookSpec] = &[$(<point::$point as HookPoint>::SPEC),*];

        $(
            impl HookPoint for point::$point {
                type Args<'a> = hook_table!(@args_type $point ($($arg)* $($own)?));
                type Output = $out;
                const SPEC: &'static HookSpec = &HookSpec {
                    name: stringify!($name),
                    kind: hook_table!(@kind $kind),
                    sync_only: hook_table!(@sync $($sync)?),
                    time_limit: hook_table!(@limit $kind),
                    args: &[$(HookArg { name: stringify!($arg), type_name: stringify!($ty) }),*],
                    result: stringify!($out),
                    doc: concat!($($doc),+),
                };

                fn implementations(set: &HookSet) -> &[Implementation<Self>] {
                    &set.$name
                }

                fn implementations_mut(set: &mut HookSet) -> &mut Vec<Implementation<Self>> {
                    &mut set.$name
                }
            }

            hook_table!(@chained $kind $point);
        )*

        impl HookSet {
            /// Adds the implementations of a plugin.
            pub(crate) fn merge(&mut self, plugin: Self) {
                $(
                    self.$name.extend(plugin.$name);
                    self.$name.sort_by_key(Implementation::position);
                )*
            }

            /// Sets the name and registration index of the plugin that all implementations in the set belong to.
            pub(crate) fn set_plugin(&mut self, index: usize, name: &Arc<str>) {
                $( for implementation in &mut self.$name { implementation.set_plugin(index, name); } )*
            }

            /// Returns each hook with the plugins that implement it, in registration order.
            pub(crate) fn implementations_by_hook(&self) -> Vec<(&'static HookSpec, Vec<Arc<str>>)> {
                vec![$(
                    (<point::$point as HookPoint>::SPEC, self.$name.iter().map(Implementation::plugin).collect()),
                )*]
            }
        }

        /// Passes every row of the table to a macro. Used by the plugin protocol; not for direct use.
        #[doc(hidden)]
        #[macro_export]
        macro_rules! __hook_rows {
            ($d to:ident) => {
                $d to! { $( $name $point $kind [$($sync)?] ($($arg: $ty),*) {$($own)?}; )* }
            };
        }

        /// Checks a method name in a `#[hooks]` block. Not for direct use.
        #[doc(hidden)]
        #[macro_export]
        macro_rules! __hook {
            $( $( ($name async { $d($d body:tt)* }) => {
                ::core::compile_error!(::core::concat!(
                    "the hook `", stringify!($name), "` is `", stringify!($sync), "` only: remove `async`; ",
                    "do work that waits in the constructor of the plugin, in another hook or in a service"
                ));
            }; )? )*
            $( ($name $d(async)? { $d($d body:tt)* }) => { $d($d body)* }; )*
            ($d other:ident $d(async)? { $d($d body:tt)* }) => {
                ::core::compile_error!(::core::concat!(
                    "unknown hook `", ::core::stringify!($d other),
                    "`; put helper methods into an `impl` block without `#[hooks]`; available hooks:"
                    $(, " `", stringify!($name), "`")*
                ));
            };
        }

        /// Resolves an argument name of a hook method. Not for direct use.
        #[doc(hidden)]
        #[macro_export]
        macro_rules! __hook_arg {
            $( $( ($name $arg $d call:ident) => { $crate::hooks::convert_argument($d call.args.$arg) }; )* )*
            $( $( ($name $own $d call:ident) => { $crate::hooks::convert_argument($d call.args.$own) }; )? )*
            ($d hook:ident next $d call:ident) => { $crate::hooks::convert_argument($d call.next()) };
            $( ($name $d other:ident $d call:ident) => {
                ::core::compile_error!(::core::concat!(
                    "unknown argument `", ::core::stringify!($d other), "` of the hook `", stringify!($name),
                    "`; available arguments:" $(, " `", stringify!($arg), "`")* $(, " `", stringify!($own), "`")?
                ))
            }; )*
        }
    };

    (@args $point:ident $(#[doc = $doc:literal])+ ()) => {};
    (@args $point:ident $(#[doc = $doc:literal])+ ($($arg:ident: $ty:ty,)+)) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy)]
        #[expect(missing_docs, reason = "the types document the arguments")]
        pub struct $point<'a> {
            $( pub $arg: $ty, )+
        }

        impl<'a> $point<'a> {
            /// Creates the arguments, in the order of the fields.
            #[allow(clippy::too_many_arguments, reason = "the hook determines the arguments")]
            pub fn new($($arg: $ty),+) -> Self {
                Self { $($arg),+ }
            }
        }
    };
    (@args_type $point:ident ()) => { () };
    (@args_type $point:ident ($($arg:ident)+)) => { args::$point<'a> };

    (@kind first) => { HookKind::First };
    (@kind model) => { HookKind::First };
    (@kind approval) => { HookKind::First };
    (@kind broadcast) => { HookKind::Broadcast };
    (@kind observer) => { HookKind::Observer };
    (@kind chain) => { HookKind::Chain };

    // A model has no time limit. Cancelling the turn ends it.
    (@limit model) => { None };
    // The approval request has its own time limit.
    (@limit approval) => { None };
    (@limit $kind:ident) => { Some(HOOK_TIMEOUT) };

    (@sync) => { false };
    (@sync sync) => { true };

    (@chained first $point:ident) => {
        impl Chained for point::$point {
            fn call_next(next: Next<'_, Self>) -> BoxFuture<'_, Result<Option<Self::Output>>> {
                Box::pin(next.call_first())
            }
        }

        impl ChainedSync for point::$point {}
    };
    (@chained approval $point:ident) => { hook_table!(@chained first $point); };
    (@chained $kind:ident $point:ident) => {};
}

hook_table! {
    ($)

    /// Returns the session id of a message. Default: the envelope's `session_id`, or `channel:chat_id`.
    resolve_session ResolveSession: first (message: &'a Envelope) {inbound: &'a Inbound} -> String;

    /// Returns values for the state of the turn. If several plugins set a name, the plugin registered last wins.
    load_state LoadState: broadcast (message: &'a Envelope, session_id: &'a SessionId) {turn: &'a Turn} -> StatePatch;

    /// Builds the prompt of a message. Default, also for an empty result: the content of the message.
    build_prompt BuildPrompt: first (message: &'a Envelope, session_id: &'a SessionId, state: &'a State) {turn: &'a Turn} -> Prompt;

    /// Answers a prompt with text. Implement this hook or `run_model_stream`, not both.
    run_model RunModel: model (prompt: &'a Prompt, session_id: &'a SessionId, state: &'a State) {turn: &'a Turn} -> String;

    /// Answers a prompt with a stream of events.
    run_model_stream RunModelStream: model (prompt: &'a Prompt, session_id: &'a SessionId, state: &'a State) {turn: &'a Turn} -> ModelStream;

    /// Saves data and releases resources. Runs after the model stage, whether that succeeded or failed.
    save_state SaveState: broadcast (
        session_id: &'a SessionId, state: &'a State, message: &'a Envelope, prompt: &'a Prompt, model_output: &'a str,
        partial_output: &'a str, error: Option<&'a Error>
    ) {turn: &'a Turn} -> ();

    /// Converts the model output into outbound messages. `builtin` always adds one message with the output.
    render_outbound RenderOutbound: broadcast (
        message: &'a Envelope, session_id: &'a SessionId, state: &'a State, model_output: &'a str
    ) {turn: &'a Turn} -> Vec<Envelope>;

    /// Delivers one outbound message. bub ignores the result.
    dispatch_outbound DispatchOutbound: broadcast (message: &'a Envelope) {turn: Option<&'a Turn>} -> bool;

    /// Adds commands to the `bub` command line.
    register_cli_commands RegisterCliCommands: broadcast sync (app: &'a CliApp) {} -> ();

    /// Prompts for the plugin's settings and returns them as a map, which is merged into the config file.
    onboard_config OnboardConfig: broadcast sync (current_config: &'a Value) {} -> Value;

    /// Observes an error. It cannot change the error.
    on_error OnError: observer (stage: &'a str, error: &'a Error, message: Option<&'a Envelope>) {turn: Option<&'a Turn>} -> ();

    /// Returns a part of the system prompt. Parts are joined by blank lines, in registration order.
    system_prompt SystemPrompt: broadcast sync (prompt: &'a Prompt, state: &'a State) {turn: &'a Turn} -> String;

    /// Provides the tape store. Called when bub opens its resources, not once per turn.
    provide_tape_store ProvideTapeStore: first sync () {} -> Provided<dyn TapeStore>;

    /// Provides the environment of a session, in which commands and file tools act. Default: this machine. Called before the
    /// first turn of a session, and not again while bub runs.
    provide_environment ProvideEnvironment: first (session_id: &'a SessionId, workspace: &'a Path) {} -> Arc<dyn ExecutionEnvironment>;

    /// Provides resources that are open as long as the tape store. Called first when bub opens its resources.
    provide_lifespan ProvideLifespan: broadcast sync () {} -> Box<dyn ScopeGuard>;

    /// Provides channels. If several plugins provide a channel of the same name, the plugin registered last wins.
    provide_channels ProvideChannels: broadcast sync (message_handler: &'a MessageHandler) {} -> Vec<Arc<dyn Channel>>;

    /// Defines how tape entries become the messages of a model call.
    build_tape_context BuildTapeContext: first sync () {} -> TapeContext;

    /// Builds the prompt for the next step of a running turn.
    continue_prompt ContinuePrompt: first (prompt: &'a Prompt, tape: &'a Tape, state: &'a State) {turn: &'a Turn} -> String;

    /// Returns the models that users can choose from.
    provide_model_options ProvideModelOptions: broadcast (session_id: &'a SessionId, workspace: &'a Path) {} -> ModelOptions;

    /// Runs before a model call. It can change the request, or answer in place of the model.
    before_llm_call BeforeLlmCall: chain (request: &'a LlmRequest, state: &'a State) {turn: &'a Turn} -> LlmDecision;

    /// Runs once after a model call, unless the call was cancelled.
    after_llm_call AfterLlmCall: chain (request: &'a LlmRequest, result: &'a LlmResult, state: &'a State) {turn: &'a Turn} -> ();

    /// Runs before a tool call. It can change the arguments, replace the call with a result, or deny the call.
    before_tool_call BeforeToolCall: chain (call: &'a ToolCall, state: &'a State) {turn: &'a Turn} -> ToolDecision;

    /// Runs after a tool call. It can replace the result.
    after_tool_call AfterToolCall: chain (call: &'a ToolCall, result: &'a ToolOutcome, state: &'a State) {turn: &'a Turn} -> Value;

    /// Provides a named sidecar that every session tape gets.
    provide_tape_sidecar ProvideTapeSidecar: broadcast sync () {} -> Sidecar;

    /// Decides how an inbound message is handled: process, drop, follow up or steer.
    admit_message AdmitMessage: first (session_id: &'a SessionId, message: &'a Envelope, turn: &'a TurnSnapshot) {inbound: &'a Inbound} -> Admission;

    /// Provides the inbox for messages that steer a running turn. Called when bub opens its resources, not once per
    /// turn.
    provide_steering_inbox ProvideSteeringInbox: first sync () {} -> Provided<dyn SteeringInbox>;

    /// Asks a user to approve a tool call. If the request expires or the hook fails, the call is denied.
    request_approval RequestApproval: approval (request: &'a ApprovalRequest, state: &'a State) {turn: &'a Turn} -> ApprovalAnswer;

    /// Provides HTTP routes. The HTTP listener of the gateway serves them, next to the routes of other plugins.
    provide_routes ProvideRoutes: broadcast sync (message_handler: &'a MessageHandler) {} -> Vec<HttpRoute>;

    /// Provides background services. The gateway runs them from its start to its stop.
    provide_services ProvideServices: broadcast sync () {} -> Vec<Arc<dyn Service>>;
}
