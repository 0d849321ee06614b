//! Decides who has access to the bot, and with which role. Users are identified by their numeric id. Members can also
//! be listed by user name, as in the Python version.

use std::{collections::HashSet, sync::Mutex};

use bub::kernel::Role;
use serde_json::Value;

use super::{CHANNEL_NAME, options::TelegramOptions};
use crate::lock;
use bub::gateway::pairing::Pairings;

/// Maximum number of recorded notices to senders without access, one per sender and chat.
const MAX_NOTIFIED_USERS: usize = 10_000;

/// The sender of a message, as the platform describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TelegramUser {
    /// Empty if the platform does not identify the sender: an anonymous admin or a Telegram channel.
    pub(super) id: String,
    pub(super) username: Option<String>,
    pub(super) name: String,
}

impl TelegramUser {
    /// Returns the sender of a message, or `None` for a message without one.
    pub(super) fn from_message(message: &Value) -> Option<Self> {
        let from = &message["from"];
        let id = from["id"].as_i64()?;
        // With `sender_chat`, `from` is a placeholder account that many senders share.
        let is_person = message["sender_chat"].is_null();
        let text = |name: &str| from[name].as_str().filter(|text| !text.is_empty());
        let name: Vec<&str> = [text("first_name"), text("last_name")]
            .into_iter()
            .flatten()
            .collect();
        Some(Self {
            id: if is_person {
                id.to_string()
            } else {
                String::new()
            },
            username: text("username").filter(|_| is_person).map(str::to_owned),
            name: name.join(" "),
        })
    }

    /// Returns the user with this id or user name.
    pub(super) fn from_id(id: &str) -> Option<Self> {
        let id = id.trim().trim_start_matches('@');
        (!id.is_empty()).then(|| Self {
            id: id.to_owned(),
            username: None,
            name: String::new(),
        })
    }

    /// Returns the full name and the user name. The owner sees them in `bub pair list`.
    pub(super) fn to_display_string(&self) -> String {
        match &self.username {
            Some(username) => format!("{} @{username}", self.name),
            None => self.name.clone(),
        }
    }
}

/// The access decision for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessDecision {
    /// The sender has access with this role.
    Granted(Role),
    /// The sender is unknown.
    UnknownUser,
    /// The chat is not in the list of allowed chats.
    ChatNotAllowed,
}

pub(super) struct AccessControl {
    owners: Vec<String>,
    users: Option<Vec<String>>,
    chats: Option<Vec<String>>,
    pub(super) pairings: Pairings,
    notified: Mutex<HashSet<String>>,
}

impl AccessControl {
    pub(super) fn new(options: &TelegramOptions) -> Self {
        let normalize = |list: &Vec<String>| {
            list.iter()
                .map(|item| item.trim().trim_start_matches('@').to_owned())
                .collect()
        };
        Self {
            owners: options.owners.clone(),
            users: options.allow_users.as_ref().map(normalize),
            chats: options.allow_chats.as_ref().map(normalize),
            pairings: Pairings::new(&options.home),
            notified: Mutex::default(),
        }
    }

    /// Decides about the access of a user in a chat, which has one of these ids now and had the others before.
    pub(super) fn decide_access(
        &self,
        telegram_user: &TelegramUser,
        chat_ids: &[i64],
    ) -> AccessDecision {
        let is_listed = self
            .chats
            .as_ref()
            .map(|chats| chat_ids.iter().any(|id| chats.contains(&id.to_string())));
        let role = self.user_role(telegram_user);
        if is_listed == Some(false) && role != Some(Role::Owner) {
            return AccessDecision::ChatNotAllowed;
        }
        match role {
            Some(role) => AccessDecision::Granted(role),
            // The chat is listed and no users are: everyone in it has access, but only as a guest.
            None if is_listed == Some(true) && self.users.is_none() => {
                AccessDecision::Granted(Role::Guest)
            }
            None => AccessDecision::UnknownUser,
        }
    }

    fn user_role(&self, telegram_user: &TelegramUser) -> Option<Role> {
        if telegram_user.id.is_empty() {
            return None;
        }
        if self.owners.contains(&telegram_user.id) {
            return Some(Role::Owner);
        }
        let paired = self
            .pairings
            .role(CHANNEL_NAME, &telegram_user.id)
            .unwrap_or_else(|error| {
                tracing::error!(error = error.message(), "telegram.pairings_unreadable");
                None
            });
        let is_named = |user: &String| {
            *user == telegram_user.id
                || telegram_user
                    .username
                    .as_ref()
                    .is_some_and(|name| name.eq_ignore_ascii_case(user))
        };
        let is_member = self
            .users
            .as_ref()
            .is_some_and(|users| users.iter().any(is_named));
        paired.max(is_member.then_some(Role::Member))
    }

    /// Records that a sender was notified in a chat; `key` identifies both. Returns whether this is the first notice
    /// with this key. Returns `false` once [`MAX_NOTIFIED_USERS`] notices are recorded.
    pub(super) fn mark_notified(&self, key: String) -> bool {
        let mut notified = lock(&self.notified);
        notified.len() < MAX_NOTIFIED_USERS && notified.insert(key)
    }

    /// Returns one line that counts the users and chats with access.
    pub(super) fn summary(&self) -> String {
        let count = |list: &Option<Vec<String>>| list.as_ref().map_or(0, Vec::len);
        let paired = self
            .pairings
            .users_and_requests()
            .map_or(0, |(users, _)| users.len());
        let counted = |number: usize, noun: &str| match number {
            1 => format!("1 {noun}"),
            _ => format!("{number} {noun}s"),
        };
        format!(
            "{}, {}, {paired} paired, {}",
            counted(self.owners.len(), "owner"),
            counted(count(&self.users), "allowed user"),
            counted(count(&self.chats), "allowed chat")
        )
    }
}
