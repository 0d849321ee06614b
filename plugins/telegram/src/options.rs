//! Options of the bot: values of the settings, and limits without a setting.

use std::{path::PathBuf, time::Duration};

use bub::gateway::settings::ChannelSettings;
use bub::kernel::settings::OWNERS;
use bub::kernel::{Error, Result};
use bub::settings::{Redactor, Secret, Settings};

use crate::settings::{TelegramReply, TelegramSettings};

/// Options of the Telegram channel.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[expect(clippy::struct_excessive_bools, reason = "independent settings")]
pub struct TelegramOptions {
    /// The bot token. The channel is disabled without one.
    pub token: Option<Secret>,
    /// Base URL of the Bot API.
    pub api_base: String,
    /// URL of the proxy for requests to the Bot API.
    pub proxy: Option<String>,
    /// Users with the member role: ids or user names.
    pub allow_users: Option<Vec<String>>,
    /// Ids of the chats in which the bot may be used; `None` for all chats.
    pub allow_chats: Option<Vec<String>>,
    /// User ids of the owners.
    pub owners: Vec<String>,
    /// Whether unknown users get a pairing code.
    pub pairing: bool,
    /// Whether the model's answer is sent. Otherwise only messages that the model sends with a tool are sent.
    pub is_auto: bool,
    /// Whether long answers are shown while they are generated.
    pub stream: bool,
    /// Whether messages that arrived while bub was not running are discarded.
    pub drop_pending: bool,
    /// The directory for pairings and the delivery log.
    pub home: PathBuf,
    /// Removes secrets from previews.
    pub redactor: Redactor,
    /// How long the server may delay its response to a poll while there are no updates.
    pub poll_timeout: Duration,
    /// How long to wait for the response to a poll beyond `poll_timeout`.
    pub poll_grace: Duration,
    /// Maximum time without data while a file is downloaded.
    pub file_idle_timeout: Duration,
    /// Timeout of a file download, retries included.
    pub file_timeout: Duration,
    /// How long to wait for the other messages of an album.
    pub album_delay: Duration,
    /// Minimum time between two messages to one chat.
    pub chat_interval: Duration,
    /// Minimum time between any two messages.
    pub message_interval: Duration,
    /// Answers that take longer than this get a preview.
    pub preview_delay: Duration,
    /// Minimum time between two edits of a preview.
    pub edit_interval: Duration,
    /// How long a user in a group can continue without addressing the bot again.
    pub active_window: Duration,
    /// Whether the platform shows a preview of the first link in a message.
    pub link_previews: bool,
}

impl TelegramOptions {
    /// Returns the options of the channel's settings. `settings` has the owners and the home.
    pub fn new(telegram: TelegramSettings, settings: &Settings) -> Self {
        let owners = settings.get(&OWNERS);
        let telegram_id = |owner: &String| {
            Some(
                owner
                    .split_once(':')
                    .filter(|(channel, _)| *channel == super::CHANNEL_NAME)?
                    .1
                    .to_owned(),
            )
        };
        Self {
            token: telegram
                .token
                .filter(|token| !token.expose().trim().is_empty()),
            api_base: telegram.api_base,
            proxy: telegram.proxy.filter(|proxy| !proxy.trim().is_empty()),
            allow_users: telegram.allow_users.filter(|users| !users.is_empty()),
            allow_chats: telegram.allow_chats.filter(|chats| !chats.is_empty()),
            owners: owners.iter().filter_map(telegram_id).collect(),
            pairing: telegram.pairing,
            is_auto: telegram.reply == TelegramReply::Auto,
            stream: telegram.stream,
            drop_pending: telegram.drop_pending,
            link_previews: telegram.link_previews,
            active_window: settings.get(ChannelSettings::ACTIVE_TIME_WINDOW),
            home: settings.home().to_owned(),
            redactor: settings.redactor().clone(),
            ..Self::with_home(PathBuf::new())
        }
    }

    /// Checks the form of the token and of the chat ids.
    ///
    /// # Errors
    ///
    /// Fails if a value can never be valid, so that retries are useless.
    pub fn validate(&self) -> Result<()> {
        let invalid = |name: &str, expected: &str| {
            Err(Error::config(format!(
                "invalid `telegram.{name}`: expected {expected}"
            )))
        };
        let Some(token) = &self.token else {
            return Ok(());
        };
        if !super::client::is_valid_token(token) {
            return invalid("token", "a token from @BotFather, such as `123456:ABC…`");
        }
        let is_chat = |chat: &String| chat.trim().parse::<i64>().is_ok();
        if !self.allow_chats.iter().flatten().all(is_chat) {
            return invalid(
                "allow_chats",
                "a list of numeric chat ids, such as -1001234",
            );
        }
        Ok(())
    }

    /// Returns the default options with a home directory.
    pub fn with_home(home: PathBuf) -> Self {
        Self {
            token: None,
            api_base: TelegramSettings::API_BASE.default(),
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
            poll_timeout: Duration::from_secs(25),
            poll_grace: Duration::from_secs(10),
            file_idle_timeout: Duration::from_secs(10),
            file_timeout: Duration::from_mins(1),
            album_delay: Duration::from_millis(700),
            // Slightly longer than the limits require, because network delays vary.
            chat_interval: Duration::from_millis(1_100),
            message_interval: Duration::from_millis(38),
            preview_delay: Duration::from_millis(1_500),
            edit_interval: Duration::from_millis(1_500),
            active_window: Duration::from_mins(1),
            link_previews: false,
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
            options.token = Some(format!("123:{}", "abc".repeat(12)).into());
            change(&mut options);
            options
                .validate()
                .err()
                .map(|error| error.message().to_owned())
                .unwrap_or_default()
        };
        assert_eq!(check(|_| ()), "");
        let wrong: [(&str, Change); 3] = [
            ("telegram.token", |options| {
                options.token = Some("123:abc".into());
            }),
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
