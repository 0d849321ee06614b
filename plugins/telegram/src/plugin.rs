//! The `telegram` plugin.

use std::sync::Arc;

use bub::{
    hooks,
    kernel::{Channel, MessageHandler, PluginContext},
};

use crate::{Bot, TelegramChannel, TelegramOptions, settings::TelegramSettings, tools};

/// Provides the Telegram channel, and its tools if a token is set.
#[derive(Debug)]
pub struct TelegramPlugin {
    bot: Arc<Bot>,
}

impl TelegramPlugin {
    /// The name of the plugin.
    pub const NAME: &'static str = "telegram";

    /// Creates the plugin from the settings. Adds the tools if a token is set.
    pub fn new(settings: TelegramSettings, context: &PluginContext<'_>) -> Self {
        let options = TelegramOptions::new(settings, context.settings);
        let bot = Arc::new(Bot::new(options));
        if bot.is_enabled() {
            tools::register_tools(context, &bot);
        }
        Self { bot }
    }
}

#[hooks]
impl TelegramPlugin {
    fn provide_channels(&self, message_handler: &MessageHandler) -> Vec<Arc<dyn Channel>> {
        let (bot, handler) = (Arc::clone(&self.bot), Arc::clone(message_handler));
        vec![Arc::new(TelegramChannel::new(bot, handler))]
    }
}
