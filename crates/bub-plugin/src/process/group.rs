//! The external plugins of one framework. Those that a turn needs start at the same time.

use std::sync::{Arc, Weak};

use bub_kernel::hooks::{HookPoint as _, point};
use parking_lot::Mutex;

use super::PluginProcess;

/// Hooks that bub calls when it opens its resources.
const SCOPE_HOOKS: &[&str] = &[
    point::ProvideLifespan::SPEC.name,
    point::ProvideTapeStore::SPEC.name,
    point::ProvideSteeringInbox::SPEC.name,
];
/// Hooks that bub calls in every turn that reaches the model.
const TURN_HOOKS: &[&str] = &[
    point::ResolveSession::SPEC.name,
    point::ProvideEnvironment::SPEC.name,
    point::LoadState::SPEC.name,
    point::BuildPrompt::SPEC.name,
    point::RunModel::SPEC.name,
    point::RunModelStream::SPEC.name,
    point::SystemPrompt::SPEC.name,
    point::BuildTapeContext::SPEC.name,
    point::BeforeLlmCall::SPEC.name,
    point::AfterLlmCall::SPEC.name,
    point::SaveState::SPEC.name,
    point::RenderOutbound::SPEC.name,
    point::DispatchOutbound::SPEC.name,
];

/// The external plugins of one framework.
#[derive(Clone, Debug, Default)]
pub struct PluginGroup(Arc<Mutex<Vec<Weak<PluginProcess>>>>);

impl PluginGroup {
    pub(crate) fn add(&self, plugin: &Arc<PluginProcess>) {
        self.0.lock().push(Arc::downgrade(plugin));
    }

    /// Starts the plugins that are needed for the same reason as a plugin whose `hook` is called now. Does not wait for
    /// them: otherwise each of them would start when its own hook is called, one after another.
    pub(crate) fn start_with(&self, hook: &str) {
        let groups = [SCOPE_HOOKS, TURN_HOOKS];
        let Some(needed) = groups.into_iter().find(|group| group.contains(&hook)) else {
            return;
        };
        for plugin in self.0.lock().iter().filter_map(Weak::upgrade) {
            let mut hooks = plugin.descriptor.hooks.iter();
            if hooks.any(|hook| needed.contains(&hook.name.as_str())) {
                plugin.start_in_background();
            }
        }
    }
}
