//! The plugin `builtin` of every program. It implements the default of every hook with the agent.

use std::sync::Arc;

use bub_agent::{BuiltinOptions, shell::Launcher};
use bub_kernel::{Plugin, PluginContext, hooks::HookSet};
use bub_model::LoginFactory;

/// The plugin `builtin`, which wraps the agent.
pub struct BuiltinPlugin(Arc<bub_agent::BuiltinAgent>);

impl BuiltinPlugin {
    /// Name of the plugin.
    pub const NAME: &'static str = "builtin";

    /// Creates the plugin. With a launcher, commands of the agent run under a supervisor. `logins` are
    /// the logins with which the agent can call models.
    pub fn new(
        context: &PluginContext<'_>,
        launcher: Option<Launcher>,
        logins: Arc<[LoginFactory]>,
    ) -> Self {
        let options = BuiltinOptions {
            launcher,
            logins,
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
