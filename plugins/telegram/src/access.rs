//! Who may talk to the bot, and as what. Only the number that the platform gives a person counts; and, for members, the
//! user name, because the original takes it.

use std::{collections::HashSet, sync::Mutex};

use bub::kernel::Role;
use serde_json::Value;

use super::{CHANNEL_NAME, options::TelegramOptions};
use crate::lock;
use bub::gateway::pairing::Pairings;

/// So many people are remembered as told.
const MAX_NOTIFIED_USERS: usize = 10_000;

/// Somebody as the platform describes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TelegramUser {
    /// Empty when nobody vouches for who it is: an anonymous admin, a channel.
    pub(super) id: String,
    pub(super) username: Option<String>,
    pub(super) name: String,
}

impl TelegramUser {
    /// The sender of a message; `None` when there is none.
    pub(super) fn from_message(message: &Value) -> Option<Self> {
        let from = &message["from"];
        let id = from["id"].as_i64()?;
        // Then `from` is a stand-in that many share.
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

    /// The name, for whoever decides about the person.
    pub(super) fn to_display_string(&self) -> String {
        match &self.username {
            Some(username) => format!("{} @{username}", self.name),
            None => self.name.clone(),
        }
    }
}

/// What is to be done with somebody's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessDecision {
    /// It is taken.
    Granted(Role),
    /// The person is not known.
    UnknownUser,
    /// The bot does not talk there.
    ChatNotAllowed,
}

pub(super) struct AccessControl {
    owners: Vec<String>,
    users: Option<Vec<String>>,
    chats: Option<Vec<String>>,
    pub(super) pairings: Pairings,
    told: Mutex<HashSet<String>>,
}

impl AccessControl {
    pub(super) fn new(options: &TelegramOptions) -> Self {
        let plain = |list: &Vec<String>| {
            list.iter()
                .map(|item| item.trim().trim_start_matches('@').to_owned())
                .collect()
        };
        Self {
            owners: options.owners.clone(),
            users: options.allow_users.as_ref().map(plain),
            chats: options.allow_chats.as_ref().map(plain),
            pairings: Pairings::new(&options.home),
            told: Mutex::default(),
        }
    }

    pub(super) fn decide(&self, telegram_user: &TelegramUser, chat: i64) -> AccessDecision {
        let is_listed = self
            .chats
            .as_ref()
            .map(|chats| chats.contains(&chat.to_string()));
        let role = self.role(telegram_user);
        if is_listed == Some(false) && role != Some(Role::Owner) {
            return AccessDecision::ChatNotAllowed;
        }
        match role {
            Some(role) => AccessDecision::Granted(role),
            // The chat was named, and nobody in particular: whoever is there may talk, and no more.
            None if is_listed == Some(true) && self.users.is_none() => {
                AccessDecision::Granted(Role::Guest)
            }
            None => AccessDecision::UnknownUser,
        }
    }

    fn role(&self, telegram_user: &TelegramUser) -> Option<Role> {
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

    /// Whether somebody was not told this before. When too many were told, nobody else is.
    pub(super) fn is_first(&self, what: String) -> bool {
        let mut told = lock(&self.told);
        told.len() < MAX_NOTIFIED_USERS && told.insert(what)
    }

    /// Who may talk, for people.
    pub(super) fn describe(&self) -> String {
        let count = |list: &Option<Vec<String>>| list.as_ref().map_or(0, Vec::len);
        let paired = self.pairings.all().map_or(0, |(people, _)| people.len());
        format!(
            "{} owner{}, {} allowed users, {paired} paired, {} allowed chats",
            self.owners.len(),
            if self.owners.len() == 1 { "" } else { "s" },
            count(&self.users),
            count(&self.chats)
        )
    }
}
