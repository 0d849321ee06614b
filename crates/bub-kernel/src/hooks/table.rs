//! The one table of all hooks.
//!
//! A row is: method name, type name, kind, arguments, arguments that do not leave the process, result. From it come the argument structs, the
//! typed registry, the checks of `#[hooks]`, `bub hooks` and the reference page. Adding a hook means
//! adding a row.

use std::{path::Path, sync::Arc};

use bub_tape::{Sidecar, Tape, TapeContext, TapeStore};
use serde_json::Value;

use super::{
    Chained, ChainedSync, HookArg, HookKind, HookPoint, HookSpec, Implementation, Next,
    guard::HOOK_TIMEOUT,
};
use crate::{
    BoxFuture,
    admission::{Admission, TurnSnapshot},
    approval::{ApprovalAnswer, ApprovalRequest},
    channel::{Channel, MessageHandler},
    cli::CliApp,
    envelope::Envelope,
    error::{Error, Result},
    ids::SessionId,
    inbound::Inbound,
    llm::{LlmDecision, LlmRequest, LlmResult, ModelOptions},
    prompt::Prompt,
    scope::Provided,
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
        /// Every hook as a type.
        pub mod point {
            $(
                $(#[doc = $doc])+
                #[derive(Debug)]
                pub enum $point {}
            )*
        }

        /// The arguments of every hook, under the hook's type name.
        pub mod args {
            use super::*;
            $( hook_table!(@args $point $(#[doc = $doc])+ ($($arg: $ty,)* $($own: $own_ty,)?)); )*
        }

        /// The implementations of all hooks, each in registration order.
        #[derive(Default)]
        pub struct HookSet {
            $( $name: Vec<Implementation<point::$point>>, )*
        }

        /// All rows of the table.
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
            /// Takes over everything a plugin registered.
            pub(crate) fn merge(&mut self, plugin: Self) {
                $( self.$name.extend(plugin.$name); )*
            }

            /// Marks everything in the set as belonging to a plugin.
            pub(crate) fn assign(&mut self, index: usize, name: &Arc<str>) {
                $( for found in &mut self.$name { found.assign(index, name); } )*
            }

            /// Each hook with the plugins that implement it, in registration order.
            pub(crate) fn implementations_by_hook(&self) -> Vec<(&'static HookSpec, Vec<Arc<str>>)> {
                vec![$(
                    (<point::$point as HookPoint>::SPEC, self.$name.iter().map(Implementation::plugin).collect()),
                )*]
            }
        }

        /// Gives every row of the table to a macro, for whoever carries hooks elsewhere. Not for direct use.
        #[doc(hidden)]
        #[macro_export]
        macro_rules! __hook_rows {
            ($d to:ident) => {
                $d to! { $( $name $point $kind [$($sync)?] ($($arg: $ty),*) {$($own)?}; )* }
            };
        }

        /// Checks a method name of a `#[hooks]` block. Not for direct use.
        #[doc(hidden)]
        #[macro_export]
        macro_rules! __hook {
            $( ($name { $d($d body:tt)* }) => { $d($d body)* }; )*
            ($d other:ident { $d($d body:tt)* }) => {
                ::core::compile_error!(::core::concat!(
                    "`", ::core::stringify!($d other),
                    "` is not a hook; put other methods into an `impl` block without `#[hooks]`; the hooks are:"
                    $(, " `", stringify!($name), "`")*
                ));
            };
        }

        /// Resolves an argument name of a hook method. Not for direct use.
        #[doc(hidden)]
        #[macro_export]
        macro_rules! __hook_arg {
            $( $( ($name $arg $d call:ident) => { $crate::hooks::pass($d call.args.$arg) }; )* )*
            $( $( ($name $own $d call:ident) => { $crate::hooks::pass($d call.args.$own) }; )? )*
            ($d hook:ident next $d call:ident) => { $crate::hooks::pass($d call.next()) };
            $( ($name $d other:ident $d call:ident) => {
                ::core::compile_error!(::core::concat!(
                    "`", stringify!($name), "` has no argument `", ::core::stringify!($d other),
                    "`; name only those it wants of:" $(, " `", stringify!($arg), "`")* $(, " `", stringify!($own), "`")?
                ))
            }; )*
        }
    };

    (@args $point:ident $(#[doc = $doc:literal])+ ()) => {};
    (@args $point:ident $(#[doc = $doc:literal])+ ($($arg:ident: $ty:ty,)+)) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy)]
        #[expect(missing_docs, reason = "the table names the arguments, the types explain them")]
        pub struct $point<'a> {
            $( pub $arg: $ty, )+
        }
    };
    (@args_type $point:ident ()) => { () };
    (@args_type $point:ident ($($arg:ident)+)) => { args::$point<'a> };

    (@kind first) => { HookKind::First };
    (@kind model) => { HookKind::First };
    (@kind person) => { HookKind::First };
    (@kind broadcast) => { HookKind::Broadcast };
    (@kind observer) => { HookKind::Observer };
    (@kind chain) => { HookKind::Chain };

    // A model may take as long as it needs; cancelling the turn ends it.
    (@limit model) => { None };
    // A person has as long as the request says.
    (@limit person) => { None };
    (@limit $kind:ident) => { Some(HOOK_TIMEOUT) };

    (@sync) => { false };
    (@sync sync) => { true };

    (@chained first $point:ident) => {
        impl Chained for point::$point {
            fn below(next: Next<'_, Self>) -> BoxFuture<'_, Result<Option<Self::Output>>> {
                Box::pin(next.first_below())
            }
        }

        impl ChainedSync for point::$point {}
    };
    (@chained person $point:ident) => { hook_table!(@chained first $point); };
    (@chained $kind:ident $point:ident) => {};
}

hook_table! {
    ($)

    /// Names the session a message belongs to. Fallback: the envelope's own `session_id`, then `channel:chat_id`.
    resolve_session ResolveSession: first (message: &'a Envelope) {inbound: &'a Inbound} -> String;

    /// Contributes to the state of the turn. Where two plugins set the same name, the later registered one wins.
    load_state LoadState: broadcast (message: &'a Envelope, session_id: &'a SessionId) {turn: &'a Turn} -> StatePatch;

    /// Makes the prompt of a message. Fallback, also for an empty result: the content of the message.
    build_prompt BuildPrompt: first (message: &'a Envelope, session_id: &'a SessionId, state: &'a State) {turn: &'a Turn} -> Prompt;

    /// Answers a prompt with the final text. Implement this or `run_model_stream`, not both.
    run_model RunModel: model (prompt: &'a Prompt, session_id: &'a SessionId, state: &'a State) {turn: &'a Turn} -> String;

    /// Answers a prompt with a stream of events.
    run_model_stream RunModelStream: model (prompt: &'a Prompt, session_id: &'a SessionId, state: &'a State) {turn: &'a Turn} -> ModelStream;

    /// Runs after the model stage, whether that succeeded or not: keep what is worth keeping, close what was opened.
    save_state SaveState: broadcast (
        session_id: &'a SessionId, state: &'a State, message: &'a Envelope, prompt: &'a Prompt, model_output: &'a str,
        partial_output: &'a str, error: Option<&'a Error>
    ) {turn: &'a Turn} -> ();

    /// Turns the output into messages. Fallback: one message with the output.
    render_outbound RenderOutbound: broadcast (
        message: &'a Envelope, session_id: &'a SessionId, state: &'a State, model_output: &'a str
    ) {turn: &'a Turn} -> Vec<Envelope>;

    /// Delivers one outbound message; `true` when it was delivered.
    dispatch_outbound DispatchOutbound: broadcast (message: &'a Envelope) {turn: Option<&'a Turn>} -> bool;

    /// Adds commands to the command line.
    register_cli_commands RegisterCliCommands: broadcast sync (app: &'a CliApp) {} -> ();

    /// Asks for what a plugin needs to know and returns its part of the configuration, a map.
    onboard_config OnboardConfig: broadcast sync (current_config: &'a Value) {} -> Value;

    /// Learns of a failure. Whatever it does, the failure stays what it is.
    on_error OnError: observer (stage: &'a str, error: &'a Error, message: Option<&'a Envelope>) {turn: Option<&'a Turn>} -> ();

    /// Contributes to the system prompt. Fragments are joined by a blank line, the later registered last.
    system_prompt SystemPrompt: broadcast sync (prompt: &'a Prompt, state: &'a State) {turn: &'a Turn} -> String;

    /// Provides the store of all tapes, once for a running scope.
    provide_tape_store ProvideTapeStore: first sync () {} -> Provided<dyn TapeStore>;

    /// Provides channels. Of two with the same name the later registered plugin's wins.
    provide_channels ProvideChannels: broadcast sync (message_handler: &'a MessageHandler) {} -> Vec<Arc<dyn Channel>>;

    /// Decides how tape entries become the messages of a model call.
    build_tape_context BuildTapeContext: first sync () {} -> TapeContext;

    /// Makes the prompt of the next step of a running turn.
    continue_prompt ContinuePrompt: first (prompt: &'a Prompt, tape: &'a Tape, state: &'a State) {turn: &'a Turn} -> String;

    /// Offers models to choose from.
    provide_model_options ProvideModelOptions: broadcast (session_id: &'a SessionId, workspace: &'a Path) {} -> ModelOptions;

    /// Sees a model call before it is made; may change it or answer in its place.
    before_llm_call BeforeLlmCall: chain (request: &'a LlmRequest, state: &'a State) {turn: &'a Turn} -> LlmDecision;

    /// Sees a model call after it was made, once, unless it was cancelled.
    after_llm_call AfterLlmCall: chain (request: &'a LlmRequest, result: &'a LlmResult, state: &'a State) {turn: &'a Turn} -> ();

    /// Sees a tool call before it is made; may change its arguments, answer in its place, or deny it.
    before_tool_call BeforeToolCall: chain (call: &'a ToolCall, state: &'a State) {turn: &'a Turn} -> ToolDecision;

    /// Sees what a tool call came to; may return a result to use instead.
    after_tool_call AfterToolCall: chain (call: &'a ToolCall, result: &'a ToolOutcome, state: &'a State) {turn: &'a Turn} -> Value;

    /// Provides a named sidecar tape that follows every session tape.
    provide_tape_sidecar ProvideTapeSidecar: broadcast sync () {} -> Sidecar;

    /// Decides what happens to a message that arrives: process, drop, follow up, steer.
    admit_message AdmitMessage: first (session_id: &'a SessionId, message: &'a Envelope, turn: &'a TurnSnapshot) {inbound: &'a Inbound} -> Admission;

    /// Provides the inbox for messages that steer a running turn, once for a running scope.
    provide_steering_inbox ProvideSteeringInbox: first sync () {} -> Provided<dyn SteeringInbox>;

    /// Asks a person whether a tool call may be made. No answer before the request expires is a no, and so is a failure.
    request_approval RequestApproval: person (request: &'a ApprovalRequest, state: &'a State) {turn: &'a Turn} -> ApprovalAnswer;
}
