//! Adds the installed external plugins to the program, without starting them.
//!
//! A guard plugin implements `before_tool_call` without `observe_only`. If a guard plugin cannot be
//! loaded, every tool call is denied.

use std::{ffi::OsString, sync::Arc, time::Duration};

use bub_agent::shell::Launcher;
use bub_kernel::{Error, FrameworkBuilder, Result, Role, ToolDecision, hooks::HOOKS};
use bub_model::settings::ModelSettings;
use bub_plugin::{
    Descriptor, ExternalPlugin, HostContext, InstalledPlugin, InstalledPlugins, Limits, Manifest,
    PluginConfig, PluginProcess, SettingDecl,
};
use bub_settings::{AnySetting as _, LookupValue, Settings};
use serde_json::{Map, Value};

use crate::app_settings::{AppSettings, OMIT_PLUGINS, PLUGIN_SELECTION};

/// Name of the internal plugin that denies every tool call if a guard plugin cannot be loaded. It
/// contains a space, so that no installed plugin can have this name.
const MISSING_GUARDS_PLUGIN: &str = "absent guards";

/// Timeout for the start of a plugin from a Python package, whose imports can be slow.
const PYTHON_START_TIMEOUT: Duration = Duration::from_secs(30);

/// Installed plugins in the order of registration.
#[derive(Default)]
pub(crate) struct LoadedPlugins {
    /// Each plugin with its configuration and descriptor, or the error because of which it is skipped.
    plugins: Vec<(String, Result<(PluginConfig, Descriptor)>)>,
    /// Reasons to deny every tool call: why guard plugins or the list of plugins cannot be loaded.
    denials: Vec<String>,
}

/// Loads the configuration of the installed plugins. Plugins with errors are skipped and do not
/// stop the program. If a skipped plugin checks tool calls ([`Descriptor::is_guard`]), every tool
/// call is denied.
pub(crate) fn load(settings: &mut Settings) -> LoadedPlugins {
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
    let selection = settings.get(PLUGIN_SELECTION);
    let has = |item: &str| selection.iter().any(|selected| selected == item);
    let is_selected = |name: &str, is_enabled: bool| {
        let is_enabled = is_enabled && !has(OMIT_PLUGINS);
        (is_enabled || has(name)) && !has(&format!("!{name}"))
    };
    for record in installed.plugins {
        if !is_selected(&record.manifest.name, record.enabled) {
            continue;
        }
        let is_guard = record.descriptor.is_guard();
        let name = record.manifest.name.clone();
        let configured = check_declarations(&record).and_then(|()| {
            settings
                .register(record.settings_section())
                .map_err(|error| Error::config(error.to_string()))?;
            let plugin_config = plugin_config(&record, settings)?;
            Ok((plugin_config, record.descriptor))
        });
        loaded.add_plugin(name, is_guard, configured);
    }
    for damaged in installed.damaged {
        if !is_selected(damaged.name(), true) {
            continue;
        }
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

    /// Denies every tool call if `is_guard`, because the guard plugin `name` cannot be loaded.
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
        host: &HostContext,
    ) -> FrameworkBuilder {
        for (name, mut configured) in std::mem::take(&mut self.plugins) {
            if let Ok((_, descriptor)) = &configured
                && builder.has_plugin(&name)
            {
                let error = Error::config(format!(
                    "plugin name `{name}` is taken by a plugin that is built into bub; run `bub plugin remove {name}`, or change `name` in its `bub-plugin.yml` and add it again"
                ));
                self.deny_if_guard(&name, descriptor.is_guard(), error.message());
                configured = Err(error);
            }
            let host = host.clone();
            builder = builder.plugin_with(name, move |context| {
                let (plugin_config, descriptor) = configured?;
                let host = HostContext {
                    framework: context.framework.clone(),
                    workspace: context.workspace.to_owned(),
                    ..host
                };
                let process = PluginProcess::new(plugin_config, descriptor, host);
                Ok::<_, Error>(ExternalPlugin::new(process, context))
            });
        }
        if self.denials.is_empty() {
            return builder;
        }
        let guards = MissingGuards(self.denials.join("; "));
        builder.plugin(MISSING_GUARDS_PLUGIN, guards)
    }
}

/// The internal plugin that denies every tool call, because a plugin that checks tool calls cannot
/// be loaded. The text is the reason.
struct MissingGuards(String);

#[bub_macros::hooks(crate = bub_kernel)]
impl MissingGuards {
    fn before_tool_call(&self) -> ToolDecision {
        ToolDecision::Deny(Some(self.0.clone()))
    }
}

/// Checks the manifest and the descriptor of a plugin. Fails if they are invalid, or if a setting
/// conflicts with the program. A channel may replace one that is built in.
pub fn check_declarations(record: &InstalledPlugin) -> Result<()> {
    if let Some(reason) = record.manifest.problem() {
        return Err(Error::config(reason));
    }
    record.descriptor.check()?;
    // The environment variables of a Python plugin are those that its settings classes name.
    if record.package.is_some() {
        return Ok(());
    }
    check_setting_names(&record.manifest)
}

/// Fails if the environment variable of a plugin's setting would be the variable of a provider.
///
/// For example, `BUB_OPENAI_API_KEY` is always the key of the provider `openai`, even if a plugin
/// `openai` declares the setting `api_key`. The user may add the provider later.
pub fn check_setting_names(manifest: &Manifest) -> Result<()> {
    let keys = [
        ModelSettings::API_KEY.setting(),
        ModelSettings::API_BASE.setting(),
        ModelSettings::API_KEY_COMMAND.setting(),
    ];
    let suffixes = keys.map(|key| format!("_{}", key.key.to_ascii_uppercase()));
    for SettingDecl { name, .. } in &manifest.settings {
        let variable = format!("BUB_{}_{name}", manifest.name).to_ascii_uppercase();
        if suffixes.iter().any(|suffix| variable.ends_with(suffix)) {
            return Err(Error::config(format!(
                "setting `{name}` cannot be used: variables with the ending of {variable} are reserved for providers; rename the setting in `bub-plugin.yml` and add the plugin again"
            )));
        }
    }
    Ok(())
}

/// Returns the configuration of a plugin from its record and the setting `plugins`.
pub fn plugin_config(record: &InstalledPlugin, settings: &Settings) -> Result<PluginConfig> {
    let name = &record.manifest.name;
    let path = format!("plugins.{name}");
    let plugins = settings.get(AppSettings::PLUGINS);
    let mut limits = Limits::default();
    if record.package.is_some() {
        limits.start = PYTHON_START_TIMEOUT;
    }
    let mut max_role = Role::Member;
    let mut permissions = Some(record.manifest.permissions.clone());
    for (key, value) in map_at(
        &path,
        plugins.get(name),
        "must be a map with `limits`, `role` and `sandbox`",
    )? {
        let path = format!("{path}.{key}");
        match key.as_str() {
            "limits" => limits = parse_limits(&path, value, limits)?,
            "role" => {
                let role = value.as_str().and_then(Role::from_name);
                let role_error = || setting_error(&path, "must be guest, member or owner");
                max_role = role.ok_or_else(role_error)?;
            }
            "sandbox" => {
                let sandbox_error = || setting_error(&path, "must be true or false");
                if !value.as_bool().ok_or_else(sandbox_error)? {
                    permissions = None;
                }
            }
            _ => {
                let reason = "is unknown; available keys: `limits`, `role` and `sandbox`";
                return Err(setting_error(&path, reason));
            }
        }
    }
    let config = plugin_settings(record, settings);
    let granted = record.manifest.env.iter();
    let variables = granted.map(|name| (name.clone(), settings.granted_variable(name)));
    let fingerprint = bub_plugin::fingerprint(&config, variables);
    Ok(PluginConfig {
        name: name.clone(),
        command: record.manifest.command.iter().map(OsString::from).collect(),
        directory: record.directory.clone(),
        granted: record.manifest.env.clone(),
        permissions,
        home_files: record.manifest.home_files.clone(),
        config,
        is_stale: record.fingerprint.as_ref() != Some(&fingerprint),
        fingerprint,
        limits,
        max_role,
        pinned: record.pinned.clone(),
        digest: record.digest.clone(),
    })
}

/// Builds the error for an invalid value in the setting `plugins`.
fn setting_error(path: &str, reason: &str) -> Error {
    Error::config(format!("setting {path} {reason}"))
}

/// Returns the entries of a map in the setting `plugins`. A missing map has no entries.
fn map_at<'a>(
    path: &str,
    value: Option<&'a Value>,
    expected: &str,
) -> Result<impl Iterator<Item = (&'a String, &'a Value)>> {
    let map = match value {
        None | Some(Value::Null) => None,
        Some(Value::Object(map)) => Some(map),
        Some(_) => return Err(setting_error(path, expected)),
    };
    Ok(map.into_iter().flatten())
}

/// Parses the timeouts of a plugin. Missing timeouts keep their default.
fn parse_limits(path: &str, value: &Value, mut limits: Limits) -> Result<Limits> {
    const TIMEOUT_KEYS: &str = "start, hook, synchronous, tool, model and hooks";
    let expected = format!("must be a map with {TIMEOUT_KEYS}");
    for (key, value) in map_at(path, Some(value), &expected)? {
        let path = format!("{path}.{key}");
        let limit = match key.as_str() {
            "start" => &mut limits.start,
            "hook" => &mut limits.hook,
            "synchronous" => &mut limits.synchronous,
            "tool" => &mut limits.tool,
            "model" => &mut limits.model,
            "hooks" => {
                let Value::Object(hooks) = value else {
                    return Err(setting_error(&path, "must be a map from hooks to seconds"));
                };
                for (hook, value) in hooks {
                    let path = format!("{path}.{hook}");
                    if !HOOKS.iter().any(|spec| spec.name == hook) {
                        let reason = "is not a hook; run `bub hooks --all` to list them";
                        return Err(setting_error(&path, reason));
                    }
                    limits
                        .hooks
                        .insert(hook.clone(), parse_seconds(&path, value)?);
                }
                continue;
            }
            _ => {
                let reason = format!("is unknown; available keys: {TIMEOUT_KEYS}");
                return Err(setting_error(&path, &reason));
            }
        };
        *limit = parse_seconds(&path, value)?;
    }
    Ok(limits)
}

fn parse_seconds(path: &str, value: &Value) -> Result<Duration> {
    let seconds = value.as_f64().filter(|seconds| *seconds > 0.0);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| setting_error(path, "must be a number of seconds greater than 0"))
}

/// Returns the values of the settings that a plugin declares, including secrets.
fn plugin_settings(record: &InstalledPlugin, settings: &Settings) -> Value {
    let mut values = Map::new();
    for SettingDecl { name, .. } in &record.manifest.settings {
        let value = match settings.get_value(&format!("{}.{name}", record.manifest.name)) {
            Ok(LookupValue::Value(Value::Null)) | Err(_) => continue,
            Ok(LookupValue::Value(value)) => value,
            Ok(LookupValue::Secret(secret)) => secret.expose().into(),
        };
        values.insert(name.clone(), value);
    }
    values.into()
}

/// Returns the host context for plugins that are not registered yet and cannot ask questions.
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
        group: bub_plugin::PluginGroup::default(),
    }
}
