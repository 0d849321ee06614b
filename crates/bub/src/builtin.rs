//! The plugin `builtin` of every program. It implements the default of every hook with the agent.

use std::sync::Arc;

use bub_agent::{BuiltinOptions, shell::Launcher};
use bub_kernel::{Plugin, PluginContext, hooks::HookSet};

/// The plugin `builtin`, which wraps the agent.
pub struct BuiltinPlugin(Arc<bub_agent::BuiltinAgent>);

impl BuiltinPlugin {
    /// Name of the plugin.
    pub const NAME: &'static str = "builtin";

    /// Creates the plugin. With a launcher, commands of the agent run under a supervisor.
    pub fn new(context: &PluginContext<'_>, launcher: Option<Launcher>) -> Self {
        let options = BuiltinOptions {
            launcher,
            ..BuiltinOptions::default()
        };
        Self(Arc::new(bub_agent::BuiltinAgent::new(context, options)))
    }
}

impl Plugin for BuiltinPlugin {
    fn register(self: Arc<Self>, hooks: &mut HookSet) {
        Arc::clone(&self.0).register(hooks);
    }
}
