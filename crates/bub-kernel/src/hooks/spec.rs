//! What the table says about a hook.

use std::time::Duration;

use super::{Implementation, table::HookSet};

/// How the results of a hook's implementations are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookKind {
    /// The first result that is not `None` wins; the rest are not called.
    First,
    /// All are called; all results count.
    Broadcast,
    /// All are called; failures are logged and go no further.
    Observer,
    /// Each sees what the one before it decided; the first final decision stops the chain.
    Chain,
}

impl HookKind {
    /// The name in reports and documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first-result",
            Self::Broadcast => "broadcast",
            Self::Observer => "observer",
            Self::Chain => "chain",
        }
    }
}

/// One argument of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookArg {
    /// The name by which an implementation asks for it.
    pub name: &'static str,
    /// Its Rust type.
    pub type_name: &'static str,
}

/// One row of the hook table.
#[derive(Clone, Copy, Debug)]
pub struct HookSpec {
    /// The name of the hook, which is the name of the method that implements it.
    pub name: &'static str,
    /// How results are combined.
    pub kind: HookKind,
    /// Whether asynchronous implementations are skipped with a warning.
    pub sync_only: bool,
    /// How long an asynchronous implementation may take; `None` for those that run a model or ask a person.
    pub time_limit: Option<Duration>,
    /// The arguments an implementation may ask for.
    pub args: &'static [HookArg],
    /// The Rust type of a result.
    pub result: &'static str,
    /// What the hook is for.
    pub doc: &'static str,
}

/// A hook as a type: ties its name to its arguments and its result.
///
/// Implemented by the table only.
pub trait HookPoint: Sized + Send + Sync + 'static {
    /// What an implementation can be given.
    type Args<'a>: Copy + Send + Sync;
    /// What it may return.
    type Output: Send + 'static;
    /// Its row in the table.
    const SPEC: &'static HookSpec;

    /// The implementations in registration order.
    fn implementations(set: &HookSet) -> &[Implementation<Self>];
    /// The same, for registration.
    fn implementations_mut(set: &mut HookSet) -> &mut Vec<Implementation<Self>>;
}
