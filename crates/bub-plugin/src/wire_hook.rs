//! The hooks as methods of the plugin protocol, generated from the hook table.

use std::{borrow::Cow, path::Path};

use bub_kernel::{
    ApprovalRequest, BoxFuture, CliApp, Envelope, Error, Inbound, LlmRequest, LlmResult,
    MessageHandler, Prompt, Result, Sender, SessionId, State, ToolCall, ToolOutcome, Turn,
    TurnSnapshot,
    hooks::{HookCall, HookPoint, HookSet, Next, args, point},
};
use bub_tape::Tape;
use serde_json::{Map, Value, json};

use crate::{
    callbacks::invalid_argument_error,
    codec::{Argument, TurnFacts, Wire},
    hook::ExternalHook,
    serve::{HostCall, HostChain, HostChainStream, ServedCall, ServedPlugin},
};

/// Returns why an external plugin cannot implement a hook, or `None` if it can.
pub(crate) fn unsupported_reason(hook: &str) -> Option<&'static str> {
    Some(match hook {
        "provide_routes" => "its result cannot run in another process; remove the hook",
        "provide_services" => {
            "an external plugin can run background work at any time; remove the hook"
        }
        "provide_channels" => "list the channels under `channels` instead",
        "register_cli_commands" => "list the commands under `commands` instead",
        _ => return None,
    })
}

/// A hook argument that the plugin protocol does not contain: a turn or an inbound message. Only its sender is sent to
/// the plugin.
pub(crate) trait InProcess<'a>: Copy {
    /// Creates the argument in a served plugin from a request of the host.
    fn from_call(call: &'a ServedCall<'_>) -> Self;

    /// Returns the turn that the hook is called in.
    fn turn(self) -> Option<&'a Turn>;

    /// Returns the sender of the turn or of the inbound message, or `None` if an optional turn is absent. The role of a
    /// sender that no channel authenticated is guest.
    fn sender(self) -> Option<Cow<'a, Sender>> {
        self.turn().map(|turn| Cow::Borrowed(turn.sender()))
    }
}

impl<'a> InProcess<'a> for &'a Turn {
    fn from_call(call: &'a ServedCall<'_>) -> Self {
        call.turn()
    }

    fn turn(self) -> Option<&'a Turn> {
        Some(self)
    }
}

impl<'a> InProcess<'a> for Option<&'a Turn> {
    /// Returns the turn only if the request has a message, because a request does not say whether a turn is running.
    fn from_call(call: &'a ServedCall<'_>) -> Self {
        call.has_message.then(|| call.turn())
    }

    fn turn(self) -> Self {
        self
    }
}

/// Hooks that run before a turn starts have this argument.
impl<'a> InProcess<'a> for &'a Inbound {
    fn from_call(call: &'a ServedCall<'_>) -> Self {
        &call.inbound
    }

    fn turn(self) -> Option<&'a Turn> {
        None
    }

    fn sender(self) -> Option<Cow<'a, Sender>> {
        let guest = || Cow::Owned(Sender::guest(&self.message));
        let authenticated = self
            .authenticated_sender()
            .map(|sender| Cow::Borrowed(&**sender));
        Some(authenticated.unwrap_or_else(guest))
    }
}

/// A hook that the plugin protocol supports.
pub(crate) trait WireHook: HookPoint<Output: Wire> {
    /// The decoded arguments.
    type Owned: Send + Sync;

    /// Encodes the arguments for which `is_requested` returns true.
    fn encode_args(args: Self::Args<'_>, is_requested: &dyn Fn(&str) -> bool)
    -> Map<String, Value>;

    /// Decodes the arguments of a request.
    fn decode_args(raw_args: Map<String, Value>) -> Result<Self::Owned>;

    /// Returns the data about the turn that the decoded arguments contain.
    fn owned_facts(owned: &Self::Owned) -> TurnFacts<'_>;

    /// Creates the arguments for a call of a served plugin from decoded arguments.
    fn args_from_owned<'a>(owned: &'a Self::Owned, call: &'a ServedCall<'_>) -> Self::Args<'a>;

    /// Returns the data about the turn that the arguments contain.
    fn facts(args: Self::Args<'_>) -> TurnFacts<'_>;

    /// Returns the turn that the hook is called in; `None` outside a turn.
    fn turn(args: Self::Args<'_>) -> Option<&Turn>;

    /// Returns the sender that is sent to the plugin, if the hook has a turn or a message.
    fn sender(args: Self::Args<'_>) -> Option<Cow<'_, Sender>>;

    /// Returns the hooks that run after the hook of a served plugin. They call the plugins of the host.
    fn next_hooks(chain: &HostChain) -> HookSet;

    /// Returns the plugins that run after the plugin of a call. Fails for hooks that are not first-result hooks.
    fn next(_call: HookCall<'_, Self>) -> Result<Next<'_, Self>> {
        Err(Error::invalid_input(format!(
            "cannot call the next plugin of hook `{}`: only first-result hooks support `next/call`",
            Self::SPEC.name
        )))
    }

    /// Calls the next plugins with some arguments replaced. Only first-result hooks have next plugins.
    fn call_next(
        _next: Next<'_, Self>,
        _replaced: Map<String, Value>,
    ) -> BoxFuture<'_, Result<Option<Self::Output>>> {
        Box::pin(std::future::ready(Ok(None)))
    }
}

macro_rules! wire {
    ($($name:ident $point:ident $kind:ident [$($sync:ident)?] ($($arg:ident: $ty:ty),*) {$($in_process:ident)?};)*) => {
        /// The types of the hook arguments: one module per hook, one type per argument.
        #[allow(non_camel_case_types, unused_imports, dead_code, reason = "named as the table names them")]
        mod types {
            $(pub(super) mod $name {
                use super::super::*;
                $( pub(in super::super) type $arg<'a> = $ty; )*
            })*
        }

        $(
            #[allow(unused_variables, unused_mut, reason = "not every hook has arguments, a turn and a chain")]
            impl WireHook for point::$point {
                type Owned = ($(<types::$name::$arg<'static> as Argument<'static>>::Owned,)*);

                fn encode_args(args: Self::Args<'_>, is_requested: &dyn Fn(&str) -> bool) -> Map<String, Value> {
                    let mut written = Map::new();
                    $( if is_requested(stringify!($arg)) {
                        written.insert(stringify!($arg).to_owned(), Argument::encode(args.$arg));
                    } )*
                    written
                }

                fn decode_args(mut raw_args: Map<String, Value>) -> Result<Self::Owned> {
                    Ok(($(
                        Wire::decode(raw_args.remove(stringify!($arg)).unwrap_or_default())?,
                    )*))
                }

                fn owned_facts(owned: &Self::Owned) -> TurnFacts<'_> {
                    let ($($arg,)*) = owned;
                    let mut facts = TurnFacts::default();
                    $( Wire::add_facts($arg, &mut facts); )*
                    facts
                }

                fn args_from_owned<'a>(owned: &'a Self::Owned, call: &'a ServedCall<'_>) -> Self::Args<'a> {
                    let ($($arg,)*) = owned;
                    wire!(@args $point ($($arg)*) ($($in_process: InProcess::from_call(call))?))
                }

                fn facts(args: Self::Args<'_>) -> TurnFacts<'_> {
                    let mut facts = TurnFacts::default();
                    $( Argument::add_facts(args.$arg, &mut facts); )*
                    facts
                }

                fn turn(args: Self::Args<'_>) -> Option<&Turn> {
                    None $(.or(InProcess::turn(args.$in_process)))?
                }

                fn sender(args: Self::Args<'_>) -> Option<Cow<'_, Sender>> {
                    let sender = None $(.or(InProcess::sender(args.$in_process)))?;
                    // No channel authenticated the sender of a message outside a turn.
                    sender.or_else(|| Self::facts(args).message.map(|message| Cow::Owned(Sender::guest(message))))
                }

                fn next_hooks(chain: &HostChain) -> HookSet {
                    let mut hooks = HookSet::default();
                    wire!(@add_host_chain $kind [$($sync)?] $point chain hooks);
                    hooks
                }

                wire!(@call_next $kind $point $($arg)*);
            }
        )*

        /// Registers the hook with this name, if the hook table has it.
        pub(crate) fn register_hook(name: &str, hook: ExternalHook, hooks: &mut HookSet) {
            match name {
                $( stringify!($name) => wire!(@register [$($sync)?] $point hook hooks), )*
                _ => {}
            }
        }

        /// Returns the JSON Schema of the arguments and the result of each hook, by name.
        pub(crate) fn hook_schemas() -> Map<String, Value> {
            let mut all = Map::new();
            $( {
                #[allow(unused_mut, reason = "not every hook has arguments")]
                let mut args = Map::new();
                $( args.insert(
                    stringify!($arg).to_owned(),
                    <<types::$name::$arg<'static> as Argument<'static>>::Owned as Wire>::schema(),
                ); )*
                let result = <<point::$point as HookPoint>::Output as Wire>::schema();
                all.insert(stringify!($name).to_owned(), json!({"args": args, "value": result}));
            } )*
            all
        }

        /// Returns the names of the hooks that a plugin implements, and whether each hook is `observe_only`.
        pub(crate) fn implemented_hooks(hooks: &HookSet, registration_index: usize) -> Vec<(&'static str, bool)> {
            let mut implemented = Vec::new();
            $( for implementation in point::$point::implementations(hooks) {
                if implementation.registration_index() == registration_index {
                    implemented.push((stringify!($name), implementation.is_observe_only()));
                }
            } )*
            implemented
        }

        /// Calls a hook of the served plugin by name.
        pub(crate) async fn call_served_hook(
            served: &ServedPlugin,
            call: &HostCall<'_>,
            name: &str,
            raw_args: Map<String, Value>,
        ) -> Result<Value> {
            match name {
                $( stringify!($name) => served.call_hook::<point::$point>(call, raw_args).await, )*
                _ => Err(Error::not_found(format!("unknown hook `{name}`"))),
            }
        }
    };

    (@args $point:ident () ()) => { () };
    (@args $point:ident ($($arg:ident)*) ($($in_process:ident: $value:expr)?)) => {
        args::$point { $($arg: Argument::from_owned($arg),)* $($in_process: $value)? }
    };

    (@call_next first $point:ident $($arg:ident)*) => {
        fn next(call: HookCall<'_, Self>) -> Result<Next<'_, Self>> {
            Ok(call.next())
        }

        fn call_next(next: Next<'_, Self>, mut replaced: Map<String, Value>) -> BoxFuture<'_, Result<Option<Self::Output>>> {
            Box::pin(async move {
                let args = next.args();
                $( let $arg = replaced.remove(stringify!($arg));
                let $arg = $arg.map(|value| Argument::decode_replacement(args.$arg, value)).transpose();
                let $arg = $arg.map_err(|error| invalid_argument_error(&error))?; )*
                wire!(@replace_args $point args $($arg)*);
                next.with_args(args).call().await
            })
        }
    };
    (@replace_args $point:ident $args:ident) => {};
    (@replace_args $point:ident $args:ident $($arg:ident)+) => {
        #[allow(clippy::needless_update, reason = "not every hook has a turn or an inbound message")]
        let $args = args::$point { $($arg: $arg.as_ref().map_or($args.$arg, Argument::from_owned),)+ ..$args };
    };
    (@call_next model $($rest:ident)*) => { wire!(@call_next first $($rest)*); };
    (@call_next approval $($rest:ident)*) => { wire!(@call_next first $($rest)*); };
    (@call_next $($other:ident)*) => {};

    (@register [sync] $point:ident $hook:ident $hooks:ident) => { wire!(@add add_sync $point $hook $hooks) };
    (@register [] $point:ident $hook:ident $hooks:ident) => { wire!(@add add_async $point $hook $hooks) };
    (@add $add:ident $point:ident $hook:ident $hooks:ident) => {{
        let options = $hook.entry.options($hook.limit);
        $hooks.$add::<point::$point>($hook);
        $hooks.set_last_options::<point::$point>(options);
    }};

    // `run_model` and `run_model_stream` are one chain of plugins, which is always called as a stream.
    (@add_host_chain model [] $point:ident $chain:ident $hooks:ident) => {
        $hooks.add_async::<point::RunModelStream>(HostChainStream($chain.clone()))
    };
    (@add_host_chain first [] $point:ident $chain:ident $hooks:ident) => { $hooks.add_async::<point::$point>($chain.clone()) };
    (@add_host_chain approval [] $point:ident $chain:ident $hooks:ident) => { $hooks.add_async::<point::$point>($chain.clone()) };
    (@add_host_chain $kind:ident [$($sync:ident)?] $point:ident $chain:ident $hooks:ident) => {};
}

bub_kernel::__hook_rows!(wire);
