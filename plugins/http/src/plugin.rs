//! The plugin `http`.

use std::sync::Arc;

use bub::{
    hooks,
    kernel::{Channel, Error, MessageHandler, PluginContext, Result},
    settings::Settings,
};

use crate::webhook::{Webhook, WebhookOptions};

/// Provides the webhook channel.
#[derive(Debug)]
pub struct HttpPlugin {
    webhook: WebhookOptions,
}

impl HttpPlugin {
    /// The name it is registered with.
    pub const NAME: &'static str = "http";

    /// Creates the plugin from the settings of the program.
    pub fn new(context: &PluginContext<'_>) -> Result<Self> {
        let settings = context.service::<Settings>();
        let settings = settings
            .ok_or_else(|| Error::config("the plugin needs the program's settings as a service"))?;
        Ok(Self {
            webhook: WebhookOptions::new(&settings),
        })
    }
}

#[hooks]
impl HttpPlugin {
    fn provide_channels(&self, message_handler: &MessageHandler) -> Vec<Arc<dyn Channel>> {
        let (options, handler) = (self.webhook.clone(), Arc::clone(message_handler));
        vec![Arc::new(Webhook::new(options, handler))]
    }
}
