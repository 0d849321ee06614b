//! Who sent a message, and what that person is to this house.

use std::fmt;

use crate::envelope::Envelope;

/// What a person may ask for; see the policy of the agent. Ordered by how much that is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Nobody in particular.
    #[default]
    Guest,
    /// Somebody the owner let in.
    Member,
    /// Whose computer it is.
    Owner,
}

impl Role {
    /// All roles, the least first.
    pub const ALL: [Self; 3] = [Self::Guest, Self::Member, Self::Owner];

    /// The name in configuration and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Member => "member",
            Self::Owner => "owner",
        }
    }

    /// The role of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// The authenticated sender of a message.
///
/// It is set on the [`Inbound`](crate::Inbound) by the channel that accepts the message, and never read from a field of
/// the envelope, which the author of the message controls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// What the person is to this house.
    pub role: Role,
    /// The channel the message was accepted by.
    pub channel: String,
    /// The chat within the channel.
    pub chat_id: String,
    /// The person's id in that channel; empty when nobody vouches for one.
    pub id: String,
    /// The name to show.
    pub name: String,
}

impl Sender {
    /// The unknown sender of a message.
    pub fn guest(message: &Envelope) -> Self {
        let text = |part: Option<std::borrow::Cow<'_, str>>| part.unwrap_or_default().into_owned();
        Self {
            channel: text(message.channel()),
            chat_id: text(message.chat_id()),
            ..Self::default()
        }
    }

    /// The person at the terminal in which this program was started.
    pub fn terminal() -> Self {
        Self {
            role: Role::Owner,
            channel: "cli".to_owned(),
            chat_id: "local".to_owned(),
            id: "terminal".to_owned(),
            name: String::new(),
        }
    }
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = if self.id.is_empty() {
            "unknown"
        } else {
            &self.id
        };
        write!(f, "{}:{id}", self.channel)
    }
}
