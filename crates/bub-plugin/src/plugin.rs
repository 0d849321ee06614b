//! Registers an external plugin with the kernel.

use std::sync::Arc;

use bub_kernel::{
    BoxFuture, Channel, MessageHandler, Plugin, PluginContext, StatePatch, Tool,
    hooks::{AsyncHook, HookCall, HookPoint as _, HookReturn, HookSet, SyncHook, point},
};

use crate::{channel::ExternalChannel, command, hook, process::PluginProcess, tool::ExternalTool};

/// An external plugin that can be registered with the kernel.
pub struct ExternalPlugin(pub Arc<PluginProcess>);

impl ExternalPlugin {
    /// Creates the plugin and registers its tools with the context.
    pub fn new(plugin: Arc<PluginProcess>, context: &PluginContext<'_>) -> Self {
        let entries = plugin.descriptor.tools.iter();
        let tools: Vec<_> = entries
            .map(|entry| Arc::new(ExternalTool::new(&plugin, entry)) as Arc<dyn Tool>)
            .collect();
        *plugin.tools.lock() = tools.iter().map(Arc::downgrade).collect();
        context.add_tools(tools);
        plugin.host.group.add(&plugin);
        Self(plugin)
    }
}

impl Plugin for ExternalPlugin {
    fn register(self: Arc<Self>, hooks: &mut HookSet) {
        hook::register_hooks(&self.0, hooks);
        if self.0.plugin_config.is_stale && self.0.descriptor.protocol >= 2 {
            hooks.add_async::<point::LoadState>(RefreshHook(Arc::clone(&self.0)));
        }
        if !self.0.descriptor.channels.is_empty() {
            hooks.add_sync::<point::ProvideChannels>(ProvideChannelsHook(Arc::clone(&self.0)));
        }
        if !self.0.descriptor.commands.is_empty() {
            hooks.add_sync::<point::RegisterCliCommands>(RegisterCommandsHook(Arc::clone(&self.0)));
        }
    }
}

/// Starts a plugin whose settings have changed before its first turn, because its tools may have changed too.
struct RefreshHook(Arc<PluginProcess>);

impl AsyncHook<point::LoadState> for RefreshHook {
    fn call<'a>(
        &'a self,
        _: HookCall<'a, point::LoadState>,
    ) -> BoxFuture<'a, HookReturn<StatePatch>> {
        Box::pin(async {
            // The log has the reason if the plugin cannot be started. The turn continues without it.
            self.0.host.group.start_with(point::LoadState::SPEC.name);
            let _ = self.0.connect(None).await;
            Ok(None)
        })
    }
}

/// The hook `provide_channels`: returns the channels that the descriptor declares.
struct ProvideChannelsHook(Arc<PluginProcess>);

impl SyncHook<point::ProvideChannels> for ProvideChannelsHook {
    fn call(
        &self,
        call: HookCall<'_, point::ProvideChannels>,
    ) -> HookReturn<Vec<Arc<dyn Channel>>> {
        let handler: &MessageHandler = call.args.message_handler;
        let _ = self.0.inbox.set(Arc::clone(handler));
        let channels = self.0.descriptor.channels.iter();
        Ok(Some(
            channels
                .map(|entry| Arc::new(ExternalChannel::new(&self.0, entry)) as Arc<dyn Channel>)
                .collect(),
        ))
    }
}

/// The hook `register_cli_commands`: adds the commands that the descriptor declares.
struct RegisterCommandsHook(Arc<PluginProcess>);

impl SyncHook<point::RegisterCliCommands> for RegisterCommandsHook {
    fn call(&self, call: HookCall<'_, point::RegisterCliCommands>) -> HookReturn<()> {
        for entry in &self.0.descriptor.commands {
            call.args
                .app
                .add_if_absent(command::build_command(&self.0, entry));
        }
        Ok(None)
    }
}
