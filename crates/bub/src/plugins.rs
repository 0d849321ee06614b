//! Adds the installed external plugins to the program, without starting them.

use std::{ffi::OsString, sync::Arc, time::Duration};

use bub_agent::shell::Launcher;
use bub_kernel::{
    Error, FrameworkBuilder, PluginContext, Result, Role, ToolDecision, hooks::HOOKS,
};
use bub_model::settings::{API_BASE, API_KEY, API_KEY_COMMAND};
use bub_plugin::{
    Descriptor, ExternalPlugin, HostContext, InstalledPlugin, InstalledPlugins, Limits, Manifest,
    PluginConfig, PluginProcess, QuestionHandler,
};
use bub_settings::{AnySetting as _, LookupValue, Settings};
use serde_json::{Map, Value};

use crate::app_settings::PLUGINS;

/// Name of the internal plugin that denies tool calls if a guard is missing. It contains a space, so
/// that no installed plugin can have this name.
const MISSING_GUARDS_PLUGIN: &str = "absent guards";

/// Installed plugins in the order of registration.
#[derive(Default)]
pub(crate) struct LoadedPlugins {
    /// Each plugin with its configuration and descriptor, or the error because of which it is skipped.
    plugins: Vec<(String, Result<(PluginConfig, Descriptor)>)>,
    /// Reasons to deny every tool call: the errors of guards that are not loaded.
    denials: Vec<String>,
}

/// Loads the configuration of the installed plugins. Plugins with errors are skipped and do not stop
/// the program. If a guard is skipped, every tool call is denied.
pub(crate) fn load(settings: &mut Settings, bundled_channels: &[&str]) -> LoadedPlugins {
    let mut loaded = LoadedPlugins::default();
    let installed = match InstalledPlugins::load(settings.home()) {
        Ok(installed) => installed,
        Err(error) => {
            tracing::error!(error = error.message(), "plugin.list_unreadable");
            loaded.denials.push(format!(
                "tool calls are denied, because the list of plugins cannot be read: {}",
                error.message()
            ));
            return loaded;
        }
    };
    for record in installed
        .plugins
        .into_iter()
        .filter(|record| record.enabled)
    {
        let is_guard = record.descriptor.is_guard();
        let name = record.manifest.name.clone();
        let configured = check_declarations(&record, bundled_channels).and_then(|()| {
            settings
                .register(record.manifest.settings_section())
                .map_err(|error| Error::config(error.to_string()))?;
            Ok((plugin_config(&record, settings)?, record.descriptor))
        });
        loaded.add_plugin(name, is_guard, configured);
    }
    for damaged in installed.damaged {
        loaded.add_plugin(
            damaged.name().to_owned(),
            damaged.is_guard(),
            Err(Error::config(damaged.problem)),
        );
    }
    loaded
}

impl LoadedPlugins {
    fn add_plugin(
        &mut self,
        name: String,
        is_guard: bool,
        configured: Result<(PluginConfig, Descriptor)>,
    ) {
        if let Err(error) = &configured {
            self.deny_if_guard(&name, is_guard, error.message());
        }
        self.plugins.push((name, configured));
    }

    /// Records that a plugin is not loaded. If it is a guard, every tool call is denied.
    fn deny_if_guard(&mut self, name: &str, is_guard: bool, reason: &str) {
        if is_guard {
            self.denials.push(format!(
                "guard plugin `{name}` is not loaded: {reason}; fix the error or run `bub plugin remove {name}`"
            ));
        }
    }

    /// Adds the plugins to the framework of the program.
    pub(crate) fn add_to_builder(
        mut self,
        mut builder: FrameworkBuilder,
        services: &HostServices,
    ) -> FrameworkBuilder {
        for (name, configured) in std::mem::take(&mut self.plugins) {
            let configured = match configured {
                Ok((_, descriptor)) if builder.has_plugin(&name) => Err((
                    descriptor.is_guard(),
                    Error::config(format!(
                        "plugin name `{name}` is taken by a plugin that is built into bub; run `bub plugin remove {name}`, or change `name` in its `bub-plugin.yml` and add it again"
                    )),
                )),
                Ok(configured) => Ok(configured),
                // A missing guard is already recorded.
                Err(error) => Err((false, error)),
            };
            let configured = configured.map_err(|(is_guard, error)| {
                self.deny_if_guard(&name, is_guard, error.message());
                error
            });
            let services = services.clone();
            builder = builder.plugin_with(name, move |context| {
                Ok::<_, Error>(create_plugin(configured?, services, context))
            });
        }
        if self.denials.is_empty() {
            return builder;
        }
        builder.plugin(
            MISSING_GUARDS_PLUGIN,
            MissingGuards(self.denials.join("; ")),
        )
    }
}

/// Services that the program provides to external plugins.
#[derive(Clone, Default)]
pub(crate) struct HostServices {
    pub(crate) launcher: Option<Arc<Launcher>>,
    pub(crate) question_handler: Option<QuestionHandler>,
}

/// The internal plugin that denies every tool call with this reason, because a guard is missing.
struct MissingGuards(String);

#[bub_macros::hooks(crate = bub_kernel)]
impl MissingGuards {
    fn before_tool_call(&self) -> ToolDecision {
        ToolDecision::Deny(Some(self.0.clone()))
    }
}

/// Checks the manifest and the descriptor of a plugin, and conflicts with the program.
pub fn check_declarations(record: &InstalledPlugin, bundled_channels: &[&str]) -> Result<()> {
    let InstalledPlugin {
        manifest,
        descriptor,
        ..
    } = record;
    manifest
        .problem()
        .map_or(Ok(()), |reason| Err(Error::config(reason)))?;
    descriptor.check()?;
    let is_bundled = |name: &str| bundled_channels.contains(&name);
    if let Some(channel) = descriptor
        .channels
        .iter()
        .find(|channel| is_bundled(&channel.name))
    {
        return Err(Error::config(format!(
            "channel name `{}` is taken by a channel that is built into bub; rename the channel in the plugin and add the plugin again",
            channel.name
        )));
    }
    check_setting_names(manifest)
}

/// Fails if the environment variable of a plugin's setting would be the variable of a provider.
///
/// For example, `BUB_OPENAI_API_KEY` is always the key of the provider `openai`, even if a plugin
/// `openai` declares the setting `api_key`. The user may add the provider later.
pub fn check_setting_names(manifest: &Manifest) -> Result<()> {
    let provider_settings = [
        API_KEY.setting(),
        API_BASE.setting(),
        API_KEY_COMMAND.setting(),
    ];
    for setting in &manifest.settings {
        let variable = format!("BUB_{}_{}", manifest.name, setting.name).to_ascii_uppercase();
        if provider_settings
            .iter()
            .any(|key| variable.ends_with(&format!("_{}", key.key().to_ascii_uppercase())))
        {
            return Err(Error::config(format!(
                "setting `{}` cannot be used: its variable {variable} belongs to a provider; rename the setting in `bub-plugin.yml` and add the plugin again",
                setting.name
            )));
        }
    }
    Ok(())
}

fn create_plugin(
    (plugin_config, descriptor): (PluginConfig, Descriptor),
    services: HostServices,
    context: &PluginContext<'_>,
) -> ExternalPlugin {
    let host = HostContext {
        framework: context.framework.clone(),
        workspace: context.workspace.to_owned(),
        settings: Arc::clone(context.settings),
        launcher: services.launcher,
        question_handler: services.question_handler,
    };
    ExternalPlugin::new(PluginProcess::new(plugin_config, descriptor, host), context)
}

/// Returns the configuration of a plugin from its record and the setting `plugins`.
pub fn plugin_config(record: &InstalledPlugin, settings: &Settings) -> Result<PluginConfig> {
    let name = &record.manifest.name;
    let plugins = settings.get(&PLUGINS);
    let options = match plugins.get(name) {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(options)) => options.clone(),
        Some(_) => {
            return Err(setting_error(
                name,
                "",
                "must be a map with `limits` and `role`",
            ));
        }
    };
    if let Some(key) = options
        .keys()
        .find(|key| !matches!(key.as_str(), "limits" | "role"))
    {
        return Err(setting_error(
            name,
            &format!(".{key}"),
            "is unknown; available keys: `limits` and `role`",
        ));
    }
    let role = options
        .get("role")
        .map(|role| role.as_str().and_then(Role::from_name));
    let role_error = || setting_error(name, ".role", "must be guest, member or owner");
    Ok(PluginConfig {
        name: name.clone(),
        command: record.manifest.command.iter().map(OsString::from).collect(),
        directory: record.directory.clone(),
        granted: record.manifest.env.clone(),
        config: plugin_settings(record, settings),
        limits: parse_limits(name, options.get("limits"))?,
        max_role: role.map_or(Ok(Role::Member), |role| role.ok_or_else(role_error))?,
        pinned: record.pinned.clone(),
        digest: record.digest.clone(),
    })
}

/// Builds the error for an invalid value in the setting `plugins`.
fn setting_error(name: &str, key: &str, reason: &str) -> Error {
    Error::config(format!("setting plugins.{name}{key} {reason}"))
}

/// Parses the timeouts of a plugin. Missing timeouts keep their default.
fn parse_limits(name: &str, value: Option<&Value>) -> Result<Limits> {
    const TIMEOUT_KEYS: &str = "start, hook, synchronous, tool, model and hooks";
    let mut limits = Limits::default();
    let entries = match value {
        None | Some(Value::Null) => return Ok(limits),
        Some(Value::Object(entries)) => entries,
        Some(_) => {
            return Err(setting_error(
                name,
                ".limits",
                &format!("must be a map with {TIMEOUT_KEYS}"),
            ));
        }
    };
    for (key, value) in entries {
        let path = format!(".limits.{key}");
        match key.as_str() {
            "start" => limits.start = parse_seconds(name, &path, value)?,
            "hook" => limits.hook = parse_seconds(name, &path, value)?,
            "synchronous" => limits.synchronous = parse_seconds(name, &path, value)?,
            "tool" => limits.tool = parse_seconds(name, &path, value)?,
            "model" => limits.model = parse_seconds(name, &path, value)?,
            "hooks" => {
                let Value::Object(hooks) = value else {
                    return Err(setting_error(
                        name,
                        &path,
                        "must be a map from hooks to seconds",
                    ));
                };
                for (hook, value) in hooks {
                    let path = format!("{path}.{hook}");
                    if !HOOKS.iter().any(|spec| spec.name == hook) {
                        return Err(setting_error(
                            name,
                            &path,
                            "is not a hook; run `bub hooks --all` to list them",
                        ));
                    }
                    limits
                        .hooks
                        .insert(hook.clone(), parse_seconds(name, &path, value)?);
                }
            }
            _ => {
                return Err(setting_error(
                    name,
                    &path,
                    &format!("is unknown; available keys: {TIMEOUT_KEYS}"),
                ));
            }
        }
    }
    Ok(limits)
}

fn parse_seconds(name: &str, path: &str, value: &Value) -> Result<Duration> {
    let seconds = value.as_f64().filter(|seconds| *seconds > 0.0);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| setting_error(name, path, "must be a number of seconds greater than 0"))
}

/// Returns the values of the settings that a plugin declares, including secrets.
fn plugin_settings(record: &InstalledPlugin, settings: &Settings) -> Value {
    let value = |name: &str| match settings
        .get_value(&format!("{}.{name}", record.manifest.name))
        .ok()?
    {
        LookupValue::Value(value) => Some(value),
        LookupValue::Secret(secret) => Some(secret.expose().into()),
    };
    let entries = record.manifest.settings.iter();
    let entries = entries.filter_map(|entry| Some((entry.name.clone(), value(&entry.name)?)));
    Value::Object(
        entries
            .filter(|(_, value)| !value.is_null())
            .collect::<Map<_, _>>(),
    )
}

/// Returns the host context for a plugin that is being added and not registered yet.
pub fn host_context(
    settings: Arc<Settings>,
    workspace: &std::path::Path,
    launcher: Option<Arc<Launcher>>,
) -> HostContext {
    HostContext {
        framework: bub_kernel::FrameworkRef::default(),
        workspace: workspace.to_owned(),
        settings,
        launcher,
        question_handler: None,
    }
}
