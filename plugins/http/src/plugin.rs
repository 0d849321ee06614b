//! The plugin `http`.

use std::sync::Arc;

use bub::{
    hooks,
    kernel::{Channel, FrameworkRef, MessageHandler, PluginContext},
};

use crate::{
    settings::WebhookSettings,
    webhook::{WebhookChannel, WebhookOptions},
};

/// Provides the webhook channel, whose listener serves the routes of all plugins.
#[derive(Debug)]
pub struct HttpPlugin {
    webhook: WebhookOptions,
    framework: FrameworkRef,
}

impl HttpPlugin {
    /// Name under which the plugin is registered.
    pub const NAME: &'static str = "http";

    /// Creates the plugin from the settings of the program.
    pub fn new(settings: WebhookSettings, context: &PluginContext<'_>) -> Self {
        Self {
            webhook: WebhookOptions::new(settings, context.settings.redactor().clone()),
            framework: context.framework.clone(),
        }
    }
}

#[hooks]
impl HttpPlugin {
    fn provide_channels(&self, message_handler: &MessageHandler) -> Vec<Arc<dyn Channel>> {
        let (options, handler) = (self.webhook.clone(), Arc::clone(message_handler));
        let channel = WebhookChannel::new(options, handler);
        vec![Arc::new(channel.with_framework(self.framework.clone()))]
    }
}
