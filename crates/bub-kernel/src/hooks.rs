//! Hooks: the extension points that plugins implement.
//!
//! * `table` declares every hook once. Everything else is derived from it.
//! * [`HookSet`] holds the implementations of all plugins and calls them. The plugin registered last runs first.
//! * An implementation is synchronous or asynchronous. `#[hooks]` generates a [`SyncHook`] or an [`AsyncHook`] from an
//!   ordinary method.
//! * `guard` converts a panic or a timeout in an implementation into an error of that hook.
//! * [`Next`] lets an implementation of a first-result hook ([`HookKind::First`]) call the next plugins.
//! * `intercept` runs the hooks before and after model and tool calls, and has their failure rules.

mod argument;
mod call;
mod failures;
pub(crate) mod guard;
mod implementation;
mod intercept;
mod model_stage;
mod next;
mod observe;
mod output;
mod spec;
mod table;

#[doc(hidden)]
pub use argument::{AcceptedAs, UnsupportedType, convert_argument};
pub use guard::HOOK_TIMEOUT;
pub use implementation::{AsyncHook, HookCall, HookOptions, HookOrder, Implementation, SyncHook};
pub use intercept::{BeforeLlmOutcome, BeforeToolOutcome, HookDecision, InvalidReturn};
pub use next::{Chained, ChainedSync, Next};
pub use output::{HookReturn, IntoHookReturn};
pub use spec::{HookArg, HookKind, HookPoint, HookSpec};
pub use table::{HOOKS, HookSet, args, point};
