//! Hooks: the places where a plugin can step into a turn.
//!
//! * `table` declares every hook once; everything else is derived from it.
//! * [`HookSet`] holds the implementations of all plugins and calls them, latest registered first.
//! * An implementation is synchronous or asynchronous; [`SyncHook`] and [`AsyncHook`] are what
//!   `#[hooks]` generates from an ordinary method.
//! * A panic inside an implementation becomes the error of that hook (`guard`).
//! * [`Next`] lets a first-result hook run the chain below itself.
//! * The chained hooks around model and tool calls have failure rules of their own
//!   (`intercept`).

mod argument;
mod call;
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
pub use argument::{AcceptedAs, UnsupportedType, pass};
pub use guard::HOOK_TIMEOUT;
pub use implementation::{AsyncHook, HookCall, Implementation, SyncHook};
pub use intercept::{BeforeLlmOutcome, BeforeToolOutcome, HookDecision, InvalidReturn};
pub use next::{Chained, ChainedSync, Next};
pub use output::{HookReturn, IntoHookResult};
pub use spec::{HookArg, HookKind, HookPoint, HookSpec};
pub use table::{HOOKS, HookSet, args, point};
