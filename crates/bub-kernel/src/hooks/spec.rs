//! The description of a hook.

use std::time::Duration;

use super::{Implementation, table::HookSet};

/// How the results of a hook's implementations are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum HookKind {
    /// The first result that is not `None` wins. The remaining implementations are not called.
    #[strum(serialize = "first-result")]
    First,
    /// All implementations are called, and all results are used.
    Broadcast,
    /// All implementations are called. Failures are logged and ignored.
    Observer,
    /// Each implementation sees the changes that the previous ones made. A final decision, such as the denial of a tool
    /// call, ends the chain.
    Chain,
}

impl HookKind {
    /// Returns the name that reports and docs use.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// One argument of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookArg {
    /// The name of the method parameter.
    pub name: &'static str,
    /// The Rust type.
    pub type_name: &'static str,
}

/// The description of a hook: one row of the hook table.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct HookSpec {
    /// The name of the hook and of the method that implements it.
    pub name: &'static str,
    /// How results are combined.
    pub kind: HookKind,
    /// Whether only synchronous implementations are called. Asynchronous ones are skipped with a warning.
    pub sync_only: bool,
    /// Time limit of an asynchronous implementation. `None` for hooks that run a model or request an approval.
    pub time_limit: Option<Duration>,
    /// The arguments that an implementation can take.
    pub args: &'static [HookArg],
    /// The Rust type of the result.
    pub result: &'static str,
    /// The description of the hook.
    pub doc: &'static str,
}

/// A hook as a type, with its arguments and its result.
///
/// Only the hook table implements this trait.
pub trait HookPoint: Sized + Send + Sync + 'static {
    /// The arguments of an implementation.
    type Args<'a>: Copy + Send + Sync;
    /// The result of an implementation.
    type Output: Send + 'static;
    /// The description of the hook: its row of the hook table.
    const SPEC: &'static HookSpec;

    /// Returns the implementations in registration order.
    fn implementations(set: &HookSet) -> &[Implementation<Self>];
    /// Returns the mutable list of implementations, for registration.
    fn implementations_mut(set: &mut HookSet) -> &mut Vec<Implementation<Self>>;
}
