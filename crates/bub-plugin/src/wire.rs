//! Every hook of the table as a method of the protocol: generated from the table, so that none can be forgotten.

use std::path::Path;

use bub_kernel::{
    ApprovalRequest, BoxFuture, CliApp, Envelope, Error, LlmRequest, LlmResult, MessageHandler,
    Prompt, Result, State, ToolCall, ToolOutcome, TurnSnapshot,
    hooks::{Call, HookPoint, HookSet, args, point},
};
use bub_tape::Tape;
use serde_json::{Map, Value, json};

use crate::{
    callbacks::wrong_argument,
    codec::{Argument, Outcome},
    hook::Hook,
    serve::Served,
};

/// Things that cannot be provided from another process, and what a descriptor says instead.
pub(crate) const ELSEWHERE: &[(&str, &str)] = &[
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

/// A hook whose arguments and results cross.
pub(crate) trait Wire: HookPoint<Output: Outcome> {
    /// Its arguments, read.
    type Owned: Send + Sync;

    fn write(args: Self::Args<'_>, is_wanted: &dyn Fn(&str) -> bool) -> Map<String, Value>;
    fn read(given: Map<String, Value>, like: Option<Self::Args<'_>>) -> Result<Self::Owned>;
    fn of(owned: &Self::Owned) -> Self::Args<'_>;
    fn state(args: Self::Args<'_>) -> Option<&State>;
    fn message(args: Self::Args<'_>) -> Option<&Envelope>;

    /// What the plugins below say, with some arguments replaced.
    fn below(
        call: Call<'_, Self>,
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
    ($($name:ident $point:ident $kind:ident [$($sync:ident)?] ($($arg:ident: $ty:ty),*);)*) => {
        /// The types of the arguments, by hook and name.
        #[allow(non_camel_case_types, unused_imports, dead_code, reason = "named as the table names them")]
        mod types {
            $(pub(super) mod $name {
                use super::super::*;
                $( pub(in super::super) type $arg<'a> = $ty; )*
            })*
        }

        $(
            impl Wire for point::$point {
                type Owned = ($(<types::$name::$arg<'static> as Argument<'static>>::Owned,)*);

                #[allow(unused_variables, unused_mut, reason = "not every hook has arguments")]
                fn write(args: Self::Args<'_>, is_wanted: &dyn Fn(&str) -> bool) -> Map<String, Value> {
                    let mut written = Map::new();
                    $( if is_wanted(stringify!($arg)) {
                        written.insert(stringify!($arg).to_owned(), Argument::write(args.$arg));
                    } )*
                    written
                }

                #[allow(unused_variables, unused_mut, reason = "not every hook has arguments")]
                fn read(mut given: Map<String, Value>, like: Option<Self::Args<'_>>) -> Result<Self::Owned> {
                    Ok(($(
                        Argument::read(
                            given.remove(stringify!($arg)).unwrap_or_default(),
                            like.map(|like| -> types::$name::$arg<'_> { like.$arg }),
                        )?,
                    )*))
                }

                fn of(owned: &Self::Owned) -> Self::Args<'_> {
                    let ($($arg,)*) = owned;
                    wire!(@args $point ($($arg)*))
                }

                #[allow(unused_variables, reason = "not every hook has arguments")]
                fn state(args: Self::Args<'_>) -> Option<&State> {
                    None $(.or(Argument::state(args.$arg)))*
                }

                #[allow(unused_variables, reason = "not every hook has arguments")]
                fn message(args: Self::Args<'_>) -> Option<&Envelope> {
                    None $(.or(Argument::message(args.$arg)))*
                }

                wire!(@below $kind);
            }
        )*

        /// Registers the hook of that name; `false` when there is none.
        pub(crate) fn register(name: &str, hook: Hook, hooks: &mut HookSet) -> bool {
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
                    <types::$name::$arg<'static> as Argument<'static>>::schema(),
                ); )*
                let result = <<point::$point as HookPoint>::Output as Outcome>::schema();
                all.insert(stringify!($name).to_owned(), json!({"args": args, "value": result}));
            } )*
            all
        }

        /// The hooks that a plugin has, with whether it only observes.
        pub(crate) fn implemented(hooks: &HookSet, place: usize) -> Vec<(&'static str, bool)> {
            let mut found = Vec::new();
            $( for implementation in point::$point::implementations(hooks) {
                if implementation.place() == place {
                    found.push((stringify!($name), implementation.observe_only()));
                }
            } )*
            found
        }

        /// Calls the hook of that name in the plugin that is served.
        pub(crate) async fn call(served: &Served, name: &str, given: Map<String, Value>) -> Result<Option<Value>> {
            match name {
                $( stringify!($name) => served.call::<point::$point>(given).await, )*
                _ => Err(Error::not_found(format!("there is no hook `{name}`"))),
            }
        }

        /// Registers, for every hook that has one, a chain below that asks the host.
        pub(crate) fn register_below(below: &crate::serve::Below, hooks: &mut HookSet) {
            $( wire!(@remote $kind [$($sync)?] $point below hooks); )*
        }
    };

    (@args $point:ident ()) => { () };
    (@args $point:ident ($($arg:ident)+)) => { args::$point { $($arg: Argument::of($arg)),+ } };

    (@below first) => {
        fn below(call: Call<'_, Self>, mut replaced: Map<String, Value>) -> BoxFuture<'_, Result<Option<Self::Output>>> {
            Box::pin(async move {
                let is_kept = |name: &str| !replaced.contains_key(name);
                let mut given = Self::write(call.args, &is_kept);
                given.append(&mut replaced);
                let owned = Self::read(given, Some(call.args)).map_err(|error| wrong_argument(&error))?;
                call.next().with(Self::of(&owned)).call().await
            })
        }
    };
    (@below model) => { wire!(@below first); };
    (@below person) => { wire!(@below first); };
    (@below $other:ident) => {};

    (@register [sync] $point:ident $hook:ident $hooks:ident) => { $hooks.add_sync::<point::$point>($hook) };
    (@register [] $point:ident $hook:ident $hooks:ident) => { $hooks.add_async::<point::$point>($hook) };

    // What is below a model is asked as a stream, whichever of the two hooks asks.
    (@remote model [] RunModelStream $below:ident $hooks:ident) => {
        $hooks.add_async::<point::RunModelStream>(crate::serve::BelowStream($below.clone()))
    };
    (@remote model [] RunModel $below:ident $hooks:ident) => {};
    (@remote first [] $point:ident $below:ident $hooks:ident) => { $hooks.add_async::<point::$point>($below.clone()) };
    (@remote person [] $point:ident $below:ident $hooks:ident) => { $hooks.add_async::<point::$point>($below.clone()) };
    (@remote $kind:ident [$($sync:ident)?] $point:ident $below:ident $hooks:ident) => {};
}

bub_kernel::__hook_rows!(wire);
