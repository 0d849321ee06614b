//! The plugin `builtin`: what the crates below contribute, under one name.

use std::sync::Arc;

use bub_kernel::{Plugin, PluginContext, Result, hooks::HookSet};

use crate::cli::{Commands, Terminal};

/// The agent's defaults, the channels and the commands of the command line.
pub(crate) struct Builtin {
    agent: Arc<bub_agent::Builtin>,
    channels: Arc<bub_channels::Channels>,
    commands: Arc<Commands>,
    terminal: Arc<Terminal>,
}

impl Builtin {
    pub(crate) fn new(context: &PluginContext<'_>) -> Result<Self> {
        Ok(Self {
            agent: Arc::new(bub_agent::Builtin::new(context)?),
            channels: Arc::new(bub_channels::Channels::new(context)?),
            commands: Arc::default(),
            terminal: Arc::default(),
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
        // After the terminal: it asks in its own way.
        Arc::clone(&self.commands.chat).register(hooks);
    }
}
