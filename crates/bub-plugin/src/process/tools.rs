//! The tools of a plugin that change while it runs.

use std::sync::{Arc, Weak};

use bub_kernel::Tool;
use serde_json::Value;

use super::PluginProcess;
use crate::{
    descriptor::{Descriptor, ToolDecl},
    installed::InstalledPlugins,
    tool::ExternalTool,
};

impl PluginProcess {
    /// Registers the tools of a description with the framework, in place of the plugin's current tools. Keeps the
    /// current tools if a new one is invalid.
    pub(super) fn set_tools(&self, described: &Descriptor) {
        let (Some(this), Some(framework)) = (self.this.upgrade(), self.host.framework.get()) else {
            return;
        };
        if let Err(error) = described.check_tools() {
            let (plugin, error) = (self.name(), error.message());
            tracing::error!(plugin, error, "plugin.tools_invalid");
            return;
        }
        let mut current = self.tools.lock();
        let tools: Vec<_> = current.iter().filter_map(Weak::upgrade).collect();
        let is_known = |entry: &ToolDecl| {
            let mut tools = tools.iter();
            tools.any(|tool| *tool.spec() == entry.to_spec())
        };
        if described.tools.len() == tools.len() && described.tools.iter().all(is_known) {
            return;
        }
        let new = described.tools.iter();
        let new: Vec<_> = new
            .map(|entry| Arc::new(ExternalTool::new(&this, entry)) as Arc<dyn Tool>)
            .collect();
        *current = new.iter().map(Arc::downgrade).collect();
        framework.replace_tools(&tools, new);
    }

    /// Saves the tools that the plugin has with its current settings, so that they are known before its next start.
    pub(super) fn save_tools(&self, described: Descriptor) {
        let saved = InstalledPlugins::update(self.host.settings.home(), |installed| {
            let record = installed.find_mut(self.name())?;
            record.descriptor.tools = described.tools;
            record.fingerprint = Some(self.plugin_config.fingerprint.clone());
            Ok(())
        });
        if let Err(error) = saved {
            let (plugin, error) = (self.name(), error.message());
            tracing::warn!(plugin, error, "plugin.save_failed");
        }
    }

    /// Handles `tools/changed`, with which a plugin says that it has other tools now.
    pub(crate) fn change_tools(&self, params: &Value) {
        match crate::parse::deserialize_map::<Descriptor>(params) {
            Ok(described) => self.set_tools(&described),
            Err(error) => {
                let plugin = self.name();
                tracing::error!(plugin, error, "plugin.tools_invalid");
            }
        }
    }
}
