//! Provenance: whose text a turn contains. The tool policy uses it to restrict turns that an owner started but that
//! contain text of others.
//!
//! A turn has the provenance of its messages, of what its tools read, and of the entries in its view. The entries that
//! it writes carry the provenance in their `meta`, so that a later turn with these entries in its view has it, too.

use std::collections::BTreeSet;

use bub_tape::{Entry, EntryKind, PROVENANCE_KEY, TOOL_DONE_EVENT};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use strum::IntoStaticStr;

use crate::sender::Role;

/// The source of text in a turn that the sender of the turn did not write.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum UntrustedSource {
    /// Instructions of a workspace that is not trusted, such as its `AGENTS.md`.
    WorkspaceInstructions,
    /// A page or file from the network.
    WebPage,
    /// The content of a webhook.
    Webhook,
    /// A message of another person that the sender forwarded or quoted.
    Forwarded,
    /// Text of an external server or program, such as a tool of an MCP server.
    ExternalTool,
    /// A source that this version does not know.
    #[serde(other)]
    Unknown,
}

impl UntrustedSource {
    /// Returns the name that tapes use.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Whose text a turn, a view or a message contains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Provenance {
    /// The lowest role of a sender whose text is included. `None` if all text is of owners, or of senders whose role is
    /// not recorded.
    #[serde(default, rename = "role", skip_serializing_if = "Option::is_none")]
    pub least_role: Option<Role>,
    /// The sources of text that no sender wrote for this session.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub untrusted: BTreeSet<UntrustedSource>,
}

impl Provenance {
    /// Creates the provenance of a sender's message. The role of owners is not recorded, because it restricts nothing.
    pub fn new(role: Role, untrusted: BTreeSet<UntrustedSource>) -> Self {
        Self {
            least_role: Some(role).filter(|role| *role < Role::Owner),
            untrusted,
        }
    }

    /// Adds another provenance.
    pub fn merge(&mut self, other: &Self) {
        let roles = self.least_role.into_iter().chain(other.least_role);
        self.least_role = roles.min();
        self.untrusted.extend(&other.untrusted);
    }

    /// Reads the value of an entry's `meta`. An invalid value is text of a guest from an unknown source.
    pub(crate) fn from_value(value: &Value) -> Self {
        Self::deserialize(value).unwrap_or_else(|_| Self {
            least_role: Some(Role::Guest),
            untrusted: BTreeSet::from([UntrustedSource::Unknown]),
        })
    }
}

/// The provenance of a running turn and its nested runs.
#[derive(Debug, Default)]
pub(crate) struct TurnProvenance {
    /// The provenance of the turn's messages and of what its tools read.
    own: Provenance,
    /// The provenance of the entries in the turn's views.
    view: Provenance,
    /// The provenance that an owner accepted for the rest of the turn.
    accepted: Provenance,
}

impl TurnProvenance {
    pub(crate) fn add(&mut self, added: &Provenance) {
        self.own.merge(added);
    }

    /// Adds the provenance of a view: the values in the `meta` of its entries.
    pub(crate) fn add_view(&mut self, values: &[Value]) {
        for value in values {
            self.view.merge(&Provenance::from_value(value));
        }
    }

    pub(crate) fn total(&self) -> Provenance {
        let mut total = self.own.clone();
        total.merge(&self.view);
        total
    }

    /// Records that an owner accepts the current provenance.
    pub(crate) fn accept(&mut self) {
        self.accepted = self.total();
    }

    /// Returns whether an owner accepted the current provenance, and nothing worse was added since.
    pub(crate) fn is_accepted(&self) -> bool {
        let mut all = self.total();
        all.merge(&self.accepted);
        all == self.accepted
    }

    /// Adds the provenance to the `meta` of an entry that views can show. An anchor summarizes the view, so it has the
    /// provenance of the view, too.
    pub(crate) fn stamp(&self, entry: &mut Entry) {
        let mut provenance = match &entry.kind {
            EntryKind::Anchor => self.total(),
            EntryKind::Message | EntryKind::ToolResult => self.own.clone(),
            EntryKind::Event if entry.name() == Some(TOOL_DONE_EVENT) => self.own.clone(),
            _ => return,
        };
        if let Some(recorded) = entry.meta.get(PROVENANCE_KEY) {
            provenance.merge(&Provenance::from_value(recorded));
        }
        if provenance != Provenance::default()
            && let Ok(value) = serde_json::to_value(&provenance)
        {
            entry.meta.insert(PROVENANCE_KEY.to_owned(), value);
        }
    }
}
