//! The plugin `http`.

use std::sync::Arc;

use bub::{
    hooks,
    kernel::{Channel, MessageHandler, PluginContext},
};

use crate::{
    settings::WebhookSettings,
    webhook::{WebhookChannel, WebhookOptions},
};

/// Provides the webhook channel.
#[derive(Debug)]
pub struct HttpPlugin {
    webhook: WebhookOptions,
}

impl HttpPlugin {
    /// Name under which the plugin is registered.
    pub const NAME: &'static str = "http";

    /// Creates the plugin from the settings of the program.
    pub fn new(settings: WebhookSettings, context: &PluginContext<'_>) -> Self {
        Self {
            webhook: WebhookOptions::new(settings, context.settings.redactor().clone()),
        }
    }
}

#[hooks]
impl HttpPlugin {
    fn provide_channels(&self, message_handler: &MessageHandler) -> Vec<Arc<dyn Channel>> {
        let (options, handler) = (self.webhook.clone(), Arc::clone(message_handler));
        vec![Arc::new(WebhookChannel::new(options, handler))]
    }
}
