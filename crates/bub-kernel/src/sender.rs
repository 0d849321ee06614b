//! Who sent a message, and what that person is to this house.

use std::{fmt, sync::Arc};

use crate::{envelope::Envelope, state::State};

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

/// The sender of a message: a slot of the envelope that only the accepting adapter fills, never a field, because a
/// field can be written by whoever writes the message.
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

impl Envelope {
    /// Who sent it; a guest when no adapter has said so.
    pub fn sender(&self) -> Arc<Sender> {
        self.slot().unwrap_or_else(|| {
            let text =
                |part: Option<std::borrow::Cow<'_, str>>| part.unwrap_or_default().into_owned();
            let (channel, chat_id) = (text(self.channel()), text(self.chat_id()));
            Arc::new(Sender {
                channel,
                chat_id,
                ..Sender::default()
            })
        })
    }

    /// The same, sent by that person. For whoever accepts messages.
    #[must_use]
    pub fn with_sender(mut self, sender: Sender) -> Self {
        self.put_slot(Arc::new(sender));
        self
    }
}

impl State {
    /// Who sent the message of the turn; a guest when nobody has said so.
    pub fn sender(&self) -> Arc<Sender> {
        self.slot().unwrap_or_default()
    }
}
