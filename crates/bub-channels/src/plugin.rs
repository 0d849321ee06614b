//! The channels that come with the program.

use std::{path::PathBuf, sync::Arc};

use bub_kernel::{Channel, Envelope, Error, MessageHandler, PluginContext, Result, hooks};
use bub_settings::Settings;

use crate::{
    current::Current,
    telegram::{self, Bot, Telegram, TelegramOptions},
    webhook::{self, Webhook, WebhookOptions},
};

/// The names of the channels of this crate.
pub const NAMES: [&str; 2] = [webhook::NAME, telegram::NAME];

/// Provides the channels of this crate; which of them run is a matter of settings.
#[derive(Debug)]
pub struct Channels {
    webhook: WebhookOptions,
    bot: Arc<Bot>,
}

impl Default for Channels {
    fn default() -> Self {
        let bot = Bot::new(TelegramOptions::at(PathBuf::new()));
        Self {
            webhook: WebhookOptions::default(),
            bot: Arc::new(bot),
        }
    }
}

impl Channels {
    /// Makes the plugin from the settings the program loaded.
    pub fn new(context: &PluginContext<'_>) -> Result<Self> {
        let settings = context.service::<Settings>().ok_or_else(|| {
            Error::config("the channels need the program's settings as a service")
        })?;
        let bot = Arc::new(Bot::new(TelegramOptions::new(&settings)));
        if bot.is_enabled() {
            telegram::tools::register(context, &bot);
        }
        Ok(Self {
            webhook: WebhookOptions::new(&settings),
            bot,
        })
    }
}

#[hooks(crate = bub_kernel)]
impl Channels {
    /// Adds nothing: from here on what a turn sends are its plain replies.
    fn render_outbound(&self) -> Vec<Envelope> {
        if let Some(turn) = Current::get() {
            turn.note_rendered();
        }
        Vec::new()
    }

    fn provide_channels(&self, message_handler: &MessageHandler) -> Vec<Arc<dyn Channel>> {
        vec![
            Arc::new(Webhook::new(
                self.webhook.clone(),
                Arc::clone(message_handler),
            )),
            Arc::new(Telegram::new(
                Arc::clone(&self.bot),
                Arc::clone(message_handler),
            )),
        ]
    }
}

/// Whether the settings of the channels with these names can be right at all.
pub fn check_settings(settings: &Settings, names: &[String]) -> Result<()> {
    names.iter().try_for_each(|name| match name.as_str() {
        telegram::NAME => TelegramOptions::new(settings).check(),
        _ => Ok(()),
    })
}
