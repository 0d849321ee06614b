//! The plugin `builtin`: what the crates below contribute, under one name.

use std::sync::Arc;

use bub_channels::webhook::{Webhook, WebhookOptions};
use bub_kernel::{Channel, MessageHandler, Plugin, PluginContext, Result, hooks::HookSet};
use bub_settings::Settings;

use crate::cli::{Commands, Terminal};

/// The agent's defaults, the channels and the commands of the command line.
pub(crate) struct Builtin {
    agent: Arc<bub_agent::Builtin>,
    channels: Arc<bub_channels::Channels>,
    commands: Arc<Commands>,
    terminal: Arc<Terminal>,
    channels: Arc<Channels>,
}

/// The channels that come with the program.
struct Channels(Option<Arc<Settings>>);

#[bub_macros::hooks(crate = bub_kernel)]
impl Channels {
    fn provide_channels(&self, message_handler: &MessageHandler) -> Vec<Arc<dyn Channel>> {
        let webhook = |settings: &Arc<Settings>| {
            let options = WebhookOptions::new(settings);
            Arc::new(Webhook::new(options, Arc::clone(message_handler))) as Arc<dyn Channel>
        };
        self.0.iter().map(webhook).collect()
    }
}

impl Builtin {
    pub(crate) fn new(context: &PluginContext<'_>) -> Result<Self> {
        Ok(Self {
            agent: Arc::new(bub_agent::Builtin::new(context)?),
            channels: Arc::new(bub_channels::Channels::new(context)?),
            commands: Arc::default(),
            terminal: Arc::default(),
            channels: Arc::new(Channels(context.service())),
        })
    }
}

impl Plugin for Builtin {
    fn register(self: Arc<Self>, hooks: &mut HookSet) {
        Arc::clone(&self.agent).register(hooks);
        Arc::clone(&self.channels).register(hooks);
        Arc::clone(&self.commands).register(hooks);
        Arc::clone(&self.commands.in_channel).register(hooks);
        Arc::clone(&self.terminal).register(hooks);
        Arc::clone(&self.channels).register(hooks);
    }
}
