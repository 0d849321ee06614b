//! The sender of a message and the sender's role.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use strum::{EnumString, IntoStaticStr};

use crate::envelope::Envelope;

/// A sender's permission level. A higher role compares greater. The tool policy decides what each role can do.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    EnumString,
    IntoStaticStr,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
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
        self.into()
    }

    /// Returns the role with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        name.parse().ok()
    }
}

/// The authenticated sender of a message.
///
/// The channel that accepts the message sets it on the [`Inbound`](crate::Inbound). It is never read from the envelope,
/// because the author of the message controls the envelope's fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sender {
    /// The sender's role. A stored role with an unknown name is a guest.
    #[serde(deserialize_with = "role_or_guest")]
    pub role: Role,
    /// The channel that accepted the message.
    pub channel: String,
    /// The chat within the channel.
    pub chat_id: String,
    /// The sender's id in the channel. Empty if the sender is not authenticated.
    pub id: String,
    /// The sender's display name. May be empty.
    pub name: String,
}

fn role_or_guest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Role, D::Error> {
    let name = String::deserialize(deserializer)?;
    Ok(Role::from_name(&name).unwrap_or_default())
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

    /// Creates the sender of messages from the terminal in which the program was started. This sender is an owner.
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
