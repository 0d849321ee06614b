//! The plugins that are part of the program.

use std::sync::Arc;

use bub::{App, BuiltinPlugin, PluginConstructor as _};
use bub_fetch::FetchPlugin;
use bub_http::{HttpPlugin, webhook};
use bub_kernel::{Framework, Result};
use bub_replay::{ReplayPlugin, settings::ReplaySettings};
use bub_settings::Settings;
use bub_telegram::TelegramPlugin;
use bub_terminal::channel;

use crate::cli::{CLI, CliHooks, CliPlugin, discard_handler};

/// Adds the bundled plugins after `builtin`. The plugin registered last is called first, so its channels are listed
/// first.
pub(crate) fn add_plugins(app: App, hooks: &Arc<CliHooks>) -> App {
    app.bundled_plugin(FetchPlugin::NAME, &[], FetchPlugin::new)
        .settings(bub_fetch::settings::section())
        .bundled_plugin(
            TelegramPlugin::NAME,
            &[bub_telegram::CHANNEL_NAME],
            TelegramPlugin::new,
        )
        .bundled_plugin(ReplayPlugin::NAME, &[], {
            let active = hooks.replay.clone();
            move |settings: ReplaySettings| ReplayPlugin::with_replay(settings, active)
        })
        .bundled_plugin(HttpPlugin::NAME, &[webhook::CHANNEL_NAME], HttpPlugin::new)
        .login(bub_codex::login)
        .settings(bub_codex::settings::section())
        .bundled_plugin(CLI, &[channel::CHANNEL_NAME], CliPlugin(Arc::clone(hooks)))
}

/// Builds a framework with the given settings. It has the plugin `builtin` and the bundled tools and channels, but
/// neither the plugin `cli` nor plugins of the user.
pub(crate) fn build_framework(framework: &Framework, settings: Arc<Settings>) -> Framework {
    Framework::builder()
        .workspace(framework.workspace())
        .settings(settings)
        .plugin_with(BuiltinPlugin::NAME, |context| {
            BuiltinPlugin::new(context, None, Arc::default())
        })
        .plugin_with(FetchPlugin::NAME, FetchPlugin::new)
        .plugin_with(TelegramPlugin::NAME, |context| {
            TelegramPlugin::new.create(context)
        })
        .plugin_with(HttpPlugin::NAME, |context| HttpPlugin::new.create(context))
        .build()
}

/// Fails if the gateway would not start a bundled channel with these settings. Other names are accepted.
pub(crate) fn validate_channel(
    framework: &Framework,
    settings: Arc<Settings>,
    name: &str,
) -> Result<()> {
    let channels = build_framework(framework, settings).channels(&discard_handler())?;
    let mut channels = channels.iter().filter(|channel| channel.name() == name);
    channels.try_for_each(|channel| channel.validate_settings())
}
