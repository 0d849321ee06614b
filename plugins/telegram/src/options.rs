//! What the settings say about the bot, and the limits that need no setting.

use std::{path::PathBuf, time::Duration};

use bub::kernel::settings::OWNERS;
use bub::kernel::{Error, Result};
use bub::settings::{Redactor, Secret, Settings};

use crate::settings::{
    TELEGRAM_ALLOW_CHATS, TELEGRAM_ALLOW_USERS, TELEGRAM_API_BASE, TELEGRAM_DROP_PENDING,
    TELEGRAM_PAIRING, TELEGRAM_PROXY, TELEGRAM_REPLY, TELEGRAM_STREAM, TELEGRAM_TOKEN,
    TelegramReply,
};

/// How the channel is run.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[expect(clippy::struct_excessive_bools, reason = "four independent settings")]
pub struct TelegramOptions {
    /// The bot's token; without one the channel is off.
    pub token: Option<Secret>,
    /// Where the Bot API is.
    pub api_base: String,
    /// The way there.
    pub proxy: Option<String>,
    /// Who is a member: ids, or user names.
    pub allow_users: Option<Vec<String>>,
    /// Where the bot talks, when not everywhere.
    pub allow_chats: Option<Vec<String>>,
    /// The ids of the owners.
    pub owners: Vec<String>,
    /// Whether strangers are given a code.
    pub pairing: bool,
    /// Whether the model's answer is sent, or only what it sends by a tool.
    pub is_auto: bool,
    /// Whether long answers are seen to grow.
    pub stream: bool,
    /// Whether what was sent while bub did not run is thrown away.
    pub drop_pending: bool,
    /// Where pairings, and what was sent, are kept.
    pub home: PathBuf,
    /// What may not be seen in an answer that grows.
    pub redactor: Redactor,
    /// How long the server holds a poll.
    pub poll: Duration,
    /// How much longer than that an answer is waited for.
    pub wait_timeout: Duration,
    /// How long the next bytes of a file are waited for.
    pub file_patience: Duration,
    /// How long all of a file is waited for.
    pub file_limit: Duration,
    /// How long the other pictures of an album are waited for.
    pub album_wait: Duration,
    /// The least time between two messages to one chat.
    pub chat_pace: Duration,
    /// The least time between two messages to anybody.
    pub pace: Duration,
    /// An answer that takes longer than this is shown while it grows.
    pub first_preview: Duration,
    /// The least time between two edits of such an answer.
    pub edit_pace: Duration,
}

impl TelegramOptions {
    /// As the settings say.
    pub fn new(settings: &Settings) -> Self {
        let owners = settings.get(&OWNERS);
        let own = |owner: &String| {
            Some(
                owner
                    .split_once(':')
                    .filter(|(channel, _)| *channel == super::CHANNEL_NAME)?
                    .1
                    .to_owned(),
            )
        };
        Self {
            token: settings
                .get(&TELEGRAM_TOKEN)
                .filter(|token| !token.expose().trim().is_empty()),
            api_base: settings.get(&TELEGRAM_API_BASE),
            proxy: settings
                .get(&TELEGRAM_PROXY)
                .filter(|proxy| !proxy.trim().is_empty()),
            allow_users: settings
                .get(&TELEGRAM_ALLOW_USERS)
                .filter(|users| !users.is_empty()),
            allow_chats: settings
                .get(&TELEGRAM_ALLOW_CHATS)
                .filter(|chats| !chats.is_empty()),
            owners: owners.iter().filter_map(own).collect(),
            pairing: settings.get(&TELEGRAM_PAIRING),
            is_auto: settings.get(&TELEGRAM_REPLY) == TelegramReply::Auto,
            stream: settings.get(&TELEGRAM_STREAM),
            drop_pending: settings.get(&TELEGRAM_DROP_PENDING),
            home: settings.home().to_owned(),
            redactor: settings.redactor().clone(),
            ..Self::with_home(PathBuf::new())
        }
    }

    /// Whether the settings can be right at all, which no waiting would change.
    pub fn check(&self) -> Result<()> {
        let wrong = |name: &str, what: &str| {
            Err(Error::config(format!("`telegram.{name}` has to be {what}")))
        };
        let Some(token) = &self.token else {
            return Ok(());
        };
        if !super::client::is_token(token) {
            return wrong(
                "token",
                "a token as @BotFather gives it out, like `123456:ABC…`",
            );
        }
        let is_chat = |chat: &String| chat.trim().parse::<i64>().is_ok();
        if !self.allow_chats.iter().flatten().all(is_chat) {
            return wrong(
                "allow_chats",
                "a list of the numbers of chats, such as -1001234",
            );
        }
        Ok(())
    }

    /// The defaults, with that home.
    pub fn with_home(home: PathBuf) -> Self {
        Self {
            token: None,
            api_base: TELEGRAM_API_BASE.default(),
            proxy: None,
            allow_users: None,
            allow_chats: None,
            owners: Vec::new(),
            pairing: true,
            is_auto: true,
            stream: true,
            drop_pending: false,
            home,
            redactor: Redactor::new(),
            poll: Duration::from_secs(25),
            wait_timeout: Duration::from_secs(10),
            file_patience: Duration::from_secs(10),
            file_limit: Duration::from_mins(1),
            album_wait: Duration::from_millis(700),
            // A little more than the limits, because what leaves evenly does not arrive so.
            chat_pace: Duration::from_millis(1_100),
            pace: Duration::from_millis(38),
            first_preview: Duration::from_millis(1_500),
            edit_pace: Duration::from_millis(1_500),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TelegramOptions;

    type Change = fn(&mut TelegramOptions);

    #[test]
    fn settings_that_cannot_be_right_are_named() {
        let check = |change: Change| {
            let mut options = TelegramOptions::with_home("/nowhere".into());
            options.token = Some("123:abc".into());
            change(&mut options);
            options
                .check()
                .err()
                .map(|error| error.message().to_owned())
                .unwrap_or_default()
        };
        assert_eq!(check(|_| ()), "");
        let wrong: [(&str, Change); 2] = [
            ("telegram.token", |options| {
                options.token = Some("../x".into());
            }),
            ("telegram.allow_chats", |options| {
                options.allow_chats = Some(vec!["abc".to_owned()]);
            }),
        ];
        for (name, change) in wrong {
            assert!(check(change).contains(name), "{name}: {}", check(change));
        }
    }
}
