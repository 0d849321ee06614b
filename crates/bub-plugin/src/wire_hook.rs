//! Every hook of the table as a method of the protocol: generated from the table, so that none can be forgotten.

use std::{borrow::Cow, path::Path};

use bub_kernel::{
    ApprovalRequest, BoxFuture, CliApp, Envelope, Error, Inbound, LlmRequest, LlmResult,
    MessageHandler, Prompt, Result, Sender, SessionId, State, ToolCall, ToolOutcome, Turn,
    TurnSnapshot,
    hooks::{HookCall, HookPoint, HookSet, args, point},
};
use bub_tape::Tape;
use serde_json::{Map, Value, json};

use crate::{
    callbacks::wrong_argument,
    codec::{ArgumentCodec, ResultCodec, TurnFacts},
    hook::ExternalHook,
    serve::{HostCall, HostChain, HostChainStream, ServedCall, ServedPlugin},
};

/// Things that cannot be provided from another process, and what a descriptor says instead.
pub(crate) const UNSUPPORTED_HOOKS: &[(&str, &str)] = &[
    (
        "provide_tape_store",
        "a tape store cannot be in another process",
    ),
    (
        "provide_tape_sidecar",
        "a sidecar cannot be in another process",
    ),
    (
        "provide_steering_inbox",
        "a steering inbox cannot be in another process",
    ),
    (
        "provide_channels",
        "list the channels under `channels` instead",
    ),
    (
        "register_cli_commands",
        "list the commands under `commands` instead",
    ),
];

/// An argument of a hook that does not leave its process. The protocol has only the sender of it.
pub(crate) trait InProcess<'a>: Copy {
    /// The argument in a served plugin, made of what came with the call.
    fn from_call(call: &'a ServedCall<'_>) -> Self;

    /// The turn that the hook is called in.
    fn turn(self) -> Option<&'a Turn>;

    /// The sender whose rights apply.
    fn sender(self) -> Option<Cow<'a, Sender>>;
}

impl<'a> InProcess<'a> for &'a Turn {
    fn from_call(call: &'a ServedCall<'_>) -> Self {
        call.turn()
    }

    fn turn(self) -> Option<&'a Turn> {
        Some(self)
    }

    fn sender(self) -> Option<Cow<'a, Sender>> {
        Some(Cow::Borrowed(Turn::sender(self)))
    }
}

impl<'a> InProcess<'a> for Option<&'a Turn> {
    /// The protocol does not say whether there is a turn. Without a message there is none.
    fn from_call(call: &'a ServedCall<'_>) -> Self {
        call.has_message().then(|| call.turn())
    }

    fn turn(self) -> Self {
        self
    }

    fn sender(self) -> Option<Cow<'a, Sender>> {
        self.and_then(InProcess::sender)
    }
}

/// The argument of the hooks that run before there is a turn.
impl<'a> InProcess<'a> for &'a Inbound {
    fn from_call(call: &'a ServedCall<'_>) -> Self {
        call.inbound()
    }

    fn turn(self) -> Option<&'a Turn> {
        None
    }

    fn sender(self) -> Option<Cow<'a, Sender>> {
        let guest = || Cow::Owned(Sender::guest(&self.message));
        let known = self.known_sender().map(|sender| Cow::Borrowed(&**sender));
        Some(known.unwrap_or_else(guest))
    }
}

/// A hook whose arguments and results cross.
pub(crate) trait WireHook: HookPoint<Output: ResultCodec> {
    /// Its arguments, read.
    type Owned: Send + Sync;

    fn write(args: Self::Args<'_>, is_wanted: &dyn Fn(&str) -> bool) -> Map<String, Value>;
    fn read(given: Map<String, Value>, like: Option<Self::Args<'_>>) -> Result<Self::Owned>;

    /// What arguments that were read say about their turn.
    fn facts(owned: &Self::Owned) -> TurnFacts<'_>;

    /// Arguments that were read, for a hook of a served plugin.
    fn args_from_owned<'a>(owned: &'a Self::Owned, call: &'a ServedCall<'_>) -> Self::Args<'a>;

    /// Arguments that were read, in place of those of a call. The turn stays that of the call.
    fn replace<'a>(args: Self::Args<'a>, owned: &'a Self::Owned) -> Self::Args<'a>;

    fn state(args: Self::Args<'_>) -> Option<&State>;
    fn message(args: Self::Args<'_>) -> Option<&Envelope>;

    /// The turn that the hook is called in; `None` outside of one.
    fn turn(args: Self::Args<'_>) -> Option<&Turn>;

    /// The sender that a plugin is told, for hooks that have one.
    fn sender(args: Self::Args<'_>) -> Option<Cow<'_, Sender>>;

    /// The plugins below a served one, for one call: they are at the host.
    fn chain(below: &HostChain) -> HookSet;

    /// What the plugins below say, with some arguments replaced.
    fn below(
        call: HookCall<'_, Self>,
        replaced: Map<String, Value>,
    ) -> BoxFuture<'_, Result<Option<Self::Output>>> {
        let _ = (call, replaced);
        Box::pin(std::future::ready(Err(no_chain(Self::SPEC.name))))
    }
}

fn no_chain(hook: &str) -> Error {
    Error::invalid_input(format!(
        "{hook} has no chain below: only first-result hooks do"
    ))
}

macro_rules! wire {
    ($($name:ident $point:ident $kind:ident [$($sync:ident)?] ($($arg:ident: $ty:ty),*) {$($own:ident)?};)*) => {
        /// The types of the arguments, by hook and name.
        #[allow(non_camel_case_types, unused_imports, dead_code, reason = "named as the table names them")]
        mod types {
            $(pub(super) mod $name {
                use super::super::*;
                $( pub(in super::super) type $arg<'a> = $ty; )*
            })*
        }

        $(
            impl WireHook for point::$point {
                type Owned = ($(<types::$name::$arg<'static> as ArgumentCodec<'static>>::Owned,)*);

                #[allow(unused_variables, unused_mut, reason = "not every hook has arguments")]
                fn write(args: Self::Args<'_>, is_wanted: &dyn Fn(&str) -> bool) -> Map<String, Value> {
                    let mut written = Map::new();
                    $( if is_wanted(stringify!($arg)) {
                        written.insert(stringify!($arg).to_owned(), ArgumentCodec::write(args.$arg));
                    } )*
                    written
                }

                #[allow(unused_variables, unused_mut, reason = "not every hook has arguments")]
                fn read(mut given: Map<String, Value>, like: Option<Self::Args<'_>>) -> Result<Self::Owned> {
                    Ok(($(
                        ArgumentCodec::read(
                            given.remove(stringify!($arg)).unwrap_or_default(),
                            like.map(|like| -> types::$name::$arg<'_> { like.$arg }),
                        )?,
                    )*))
                }

                fn facts(owned: &Self::Owned) -> TurnFacts<'_> {
                    let ($($arg,)*) = owned;
                    TurnFacts::default()$(.with(<types::$name::$arg<'_> as ArgumentCodec<'_>>::from_owned($arg)))*
                }

                #[allow(unused_variables, reason = "not every hook has a turn")]
                fn args_from_owned<'a>(owned: &'a Self::Owned, call: &'a ServedCall<'_>) -> Self::Args<'a> {
                    let ($($arg,)*) = owned;
                    wire!(@args $point ($($arg)*) ($($own: InProcess::from_call(call))?))
                }

                #[allow(unused_variables, reason = "not every hook has a turn")]
                fn replace<'a>(args: Self::Args<'a>, owned: &'a Self::Owned) -> Self::Args<'a> {
                    let ($($arg,)*) = owned;
                    wire!(@args $point ($($arg)*) ($($own: args.$own)?))
                }

                #[allow(unused_variables, reason = "not every hook has arguments")]
                fn state(args: Self::Args<'_>) -> Option<&State> {
                    None $(.or(ArgumentCodec::state(args.$arg)))*
                }

                #[allow(unused_variables, reason = "not every hook has arguments")]
                fn message(args: Self::Args<'_>) -> Option<&Envelope> {
                    None $(.or(ArgumentCodec::message(args.$arg)))*
                }

                #[allow(unused_variables, reason = "not every hook has a turn")]
                fn turn(args: Self::Args<'_>) -> Option<&Turn> {
                    None $(.or(InProcess::turn(args.$own)))?
                }

                #[allow(unused_variables, reason = "not every hook has a turn")]
                fn sender(args: Self::Args<'_>) -> Option<Cow<'_, Sender>> {
                    let sender = None $(.or(InProcess::sender(args.$own)))?;
                    // A message outside of a turn: no channel vouches for its sender here.
                    sender.or_else(|| Self::message(args).map(|message| Cow::Owned(Sender::guest(message))))
                }

                #[allow(unused_variables, unused_mut, reason = "not every hook has a chain")]
                fn chain(below: &HostChain) -> HookSet {
                    let mut hooks = HookSet::default();
                    wire!(@remote $kind [$($sync)?] $point below hooks);
                    hooks
                }

                wire!(@below $kind);
            }
        )*

        /// Registers the hook of that name; `false` when there is none.
        pub(crate) fn register(name: &str, hook: ExternalHook, hooks: &mut HookSet) -> bool {
            match name {
                $( stringify!($name) => wire!(@register [$($sync)?] $point hook hooks), )*
                _ => return false,
            }
            true
        }

        /// The JSON Schema of every hook: what it is asked with, and what it may answer.
        pub(crate) fn schemas() -> Map<String, Value> {
            let mut all = Map::new();
            $( {
                #[allow(unused_mut, reason = "not every hook has arguments")]
                let mut args = Map::new();
                $( args.insert(
                    stringify!($arg).to_owned(),
                    <types::$name::$arg<'static> as ArgumentCodec<'static>>::schema(),
                ); )*
                let result = <<point::$point as HookPoint>::Output as ResultCodec>::schema();
                all.insert(stringify!($name).to_owned(), json!({"args": args, "value": result}));
            } )*
            all
        }

        /// The hooks that a plugin has, with whether it only observes.
        pub(crate) fn implemented(hooks: &HookSet, registration_index: usize) -> Vec<(&'static str, bool)> {
            let mut found = Vec::new();
            $( for implementation in point::$point::implementations(hooks) {
                if implementation.registration_index() == registration_index {
                    found.push((stringify!($name), implementation.observe_only()));
                }
            } )*
            found
        }

        /// Calls the hook of that name in the plugin that is served.
        pub(crate) async fn call(
            served: &ServedPlugin,
            call: &HostCall<'_>,
            name: &str,
            given: Map<String, Value>,
        ) -> Result<Option<Value>> {
            match name {
                $( stringify!($name) => served.call::<point::$point>(call, given).await, )*
                _ => Err(Error::not_found(format!("there is no hook `{name}`"))),
            }
        }
    };

    (@args $point:ident () ()) => { () };
    (@args $point:ident ($($arg:ident)*) ($($own:ident: $value:expr)?)) => {
        args::$point { $($arg: ArgumentCodec::from_owned($arg),)* $($own: $value)? }
    };

    (@below first) => {
        fn below(call: HookCall<'_, Self>, mut replaced: Map<String, Value>) -> BoxFuture<'_, Result<Option<Self::Output>>> {
            Box::pin(async move {
                let is_kept = |name: &str| !replaced.contains_key(name);
                let mut given = Self::write(call.args, &is_kept);
                given.append(&mut replaced);
                let owned = Self::read(given, Some(call.args)).map_err(|error| wrong_argument(&error))?;
                call.next().with(Self::replace(call.args, &owned)).call().await
            })
        }
    };
    (@below model) => { wire!(@below first); };
    (@below approval) => { wire!(@below first); };
    (@below $other:ident) => {};

    (@register [sync] $point:ident $hook:ident $hooks:ident) => { $hooks.add_sync::<point::$point>($hook) };
    (@register [] $point:ident $hook:ident $hooks:ident) => { $hooks.add_async::<point::$point>($hook) };

    // What is below a model is asked as a stream, whichever of the two hooks asks.
    (@remote model [] $point:ident $below:ident $hooks:ident) => {
        $hooks.add_async::<point::RunModelStream>(HostChainStream($below.clone()))
    };
    (@remote first [] $point:ident $below:ident $hooks:ident) => { $hooks.add_async::<point::$point>($below.clone()) };
    (@remote approval [] $point:ident $below:ident $hooks:ident) => { $hooks.add_async::<point::$point>($below.clone()) };
    (@remote $kind:ident [$($sync:ident)?] $point:ident $below:ident $hooks:ident) => {};
}

bub_kernel::__hook_rows!(wire);
