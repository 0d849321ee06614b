//! The sender of a message and the sender's role.

use std::fmt;

use crate::envelope::Envelope;

/// A sender's permission level. A higher role compares greater. The tool policy decides what each role can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// An unknown sender, or one without access.
    #[default]
    Guest,
    /// A user to whom the owner granted access.
    Member,
    /// The owner of this bub installation.
    Owner,
}

impl Role {
    /// All roles, lowest first.
    pub const ALL: [Self; 3] = [Self::Guest, Self::Member, Self::Owner];

    /// Returns the name that settings and reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Member => "member",
            Self::Owner => "owner",
        }
    }

    /// Returns the role with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// The authenticated sender of a message.
///
/// The channel that accepts the message sets it on the [`Inbound`](crate::Inbound). It is never read from the envelope,
/// because the author of the message controls the envelope's fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// The sender's role.
    pub role: Role,
    /// The channel that accepted the message.
    pub channel: String,
    /// The chat within the channel.
    pub chat_id: String,
    /// The sender's id in the channel. Empty if the sender is not authenticated.
    pub id: String,
    /// The display name.
    pub name: String,
}

impl Sender {
    /// Creates the sender of an unauthenticated message.
    pub fn guest(message: &Envelope) -> Self {
        let text = |part: Option<std::borrow::Cow<'_, str>>| part.unwrap_or_default().into_owned();
        Self {
            channel: text(message.channel()),
            chat_id: text(message.chat_id()),
            ..Self::default()
        }
    }

    /// Creates the user of the terminal in which the program was started. This user is an owner.
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
