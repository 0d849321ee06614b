//! The plugin `builtin`: the defaults of the agent and of the gateway, under one name.

use std::sync::Arc;

use bub_kernel::{Plugin, PluginContext, Result, hooks::HookSet};

/// The plugin `builtin`, which every program has.
pub struct Builtin {
    agent: Arc<bub_agent::Builtin>,
    gateway: Arc<bub_gateway::GatewayHooks>,
}

impl Builtin {
    /// The name it is registered with.
    pub const NAME: &'static str = "builtin";

    /// Creates the plugin from the settings of the program.
    pub fn new(context: &PluginContext<'_>) -> Result<Self> {
        Ok(Self {
            agent: Arc::new(bub_agent::Builtin::new(context)?),
            gateway: Arc::default(),
        })
    }
}

impl Plugin for Builtin {
    fn register(self: Arc<Self>, hooks: &mut HookSet) {
        Arc::clone(&self.agent).register(hooks);
        Arc::clone(&self.gateway).register(hooks);
    }
}
