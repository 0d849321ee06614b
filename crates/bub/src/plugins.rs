//! The plugins that were added with `bub plugin add`, made part of the program. None of them is started here.

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

/// The plugin that speaks for guards that cannot. No plugin that is added can have this name.
const MISSING_GUARDS_PLUGIN: &str = "absent guards";

/// The plugins of a home, in the order of registration.
#[derive(Default)]
pub(crate) struct LoadedPlugins {
    /// Each with how it is run, or why it is left out.
    plugins: Vec<(String, Result<(PluginConfig, Descriptor)>)>,
    /// Why no tool may be called: somebody would have to decide about that, and is not there.
    denials: Vec<String>,
}

/// Reads the list of plugins. Nothing that stands in it, or in what plugins declare, stops the program; a guard that is
/// left out denies.
pub(crate) fn load(settings: &mut Settings, bundled_channels: &[&str]) -> LoadedPlugins {
    let mut loaded = LoadedPlugins::default();
    let installed = match InstalledPlugins::load(settings.home()) {
        Ok(installed) => installed,
        Err(error) => {
            tracing::error!(error = error.message(), "plugin.list_unreadable");
            loaded.denials.push(format!(
                "the list of plugins cannot be read: {}",
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
        let made = check(&record, bundled_channels).and_then(|()| {
            settings
                .register(record.manifest.section())
                .map_err(|error| Error::config(error.to_string()))?;
            Ok((plugin_config(&record, settings)?, record.descriptor))
        });
        loaded.add(name, is_guard, made);
    }
    for damaged in installed.damaged {
        loaded.add(
            damaged.name().to_owned(),
            damaged.is_guard(),
            Err(Error::config(damaged.problem)),
        );
    }
    loaded
}

impl LoadedPlugins {
    fn add(&mut self, name: String, is_guard: bool, made: Result<(PluginConfig, Descriptor)>) {
        if let Err(error) = &made {
            self.deny(&name, is_guard, error.message());
        }
        self.plugins.push((name, made));
    }

    fn deny(&mut self, name: &str, is_guard: bool, reason: &str) {
        if is_guard {
            self.denials.push(format!(
                "the plugin {name} would have to decide about this, but is left out: {reason}; put that right, or `bub plugin remove {name}`"
            ));
        }
    }

    /// Adds them to the program.
    pub(crate) fn add_to(
        mut self,
        mut builder: FrameworkBuilder,
        shared: &HostServices,
    ) -> FrameworkBuilder {
        for (name, made) in std::mem::take(&mut self.plugins) {
            let made = match made {
                Ok((_, descriptor)) if builder.has_plugin(&name) => Err((
                    descriptor.is_guard(),
                    Error::config("another plugin of this program has its name"),
                )),
                Ok(made) => Ok(made),
                // That a guard is missing is known.
                Err(error) => Err((false, error)),
            };
            let made = made.map_err(|(is_guard, error)| {
                self.deny(&name, is_guard, error.message());
                error
            });
            let shared = shared.clone();
            builder = builder.plugin_with(name, move |context| {
                Ok::<_, Error>(make(made?, shared, context))
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

/// What the program provides to plugins in other processes.
#[derive(Clone, Default)]
pub(crate) struct HostServices {
    pub(crate) launcher: Option<Arc<Launcher>>,
    pub(crate) question_handler: Option<QuestionHandler>,
}

/// Denies every tool call.
struct MissingGuards(String);

#[bub_macros::hooks(crate = bub_kernel)]
impl MissingGuards {
    fn before_tool_call(&self) -> ToolDecision {
        ToolDecision::Deny(Some(self.0.clone()))
    }
}

/// Checks what a plugin wants to be against what there is already.
pub fn check(record: &InstalledPlugin, bundled_channels: &[&str]) -> Result<()> {
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
    if let Some(channel) = descriptor.channels.iter().find(|own| is_bundled(&own.name)) {
        return Err(Error::config(format!(
            "there is a channel `{}` already",
            channel.name
        )));
    }
    check_settings(manifest)
}

/// `BUB_OPENAI_API_KEY` is the key of a provider, however a plugin and its setting share that name; it may be a provider
/// that is only known later.
pub fn check_settings(manifest: &Manifest) -> Result<()> {
    let of_providers = [
        API_KEY.setting(),
        API_BASE.setting(),
        API_KEY_COMMAND.setting(),
    ];
    for own in &manifest.settings {
        let variable = format!("BUB_{}_{}", manifest.name, own.name).to_ascii_uppercase();
        if of_providers
            .iter()
            .any(|key| variable.ends_with(&format!("_{}", key.key().to_ascii_uppercase())))
        {
            return Err(Error::config(format!(
                "{variable} is a setting of a provider; call `{}` otherwise",
                own.name
            )));
        }
    }
    Ok(())
}

fn make(
    (plugin_config, descriptor): (PluginConfig, Descriptor),
    shared: HostServices,
    context: &PluginContext<'_>,
) -> ExternalPlugin {
    let host = HostContext {
        framework: context.framework.clone(),
        workspace: context.workspace.to_owned(),
        settings: Arc::clone(context.settings),
        launcher: shared.launcher,
        question_handler: shared.question_handler,
    };
    ExternalPlugin::new(PluginProcess::new(plugin_config, descriptor, host), context)
}

/// How a plugin is run, with what the configuration says about it.
pub fn plugin_config(record: &InstalledPlugin, settings: &Settings) -> Result<PluginConfig> {
    let name = &record.manifest.name;
    let all = settings.get(&PLUGINS);
    let own = match all.get(name) {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(own)) => own.clone(),
        Some(_) => return Err(wrong(name, "", "has to be a map with `limits` and `role`")),
    };
    if let Some(key) = own
        .keys()
        .find(|key| !matches!(key.as_str(), "limits" | "role"))
    {
        return Err(wrong(
            name,
            &format!(".{key}"),
            "is not known; there are `limits` and `role`",
        ));
    }
    let role = own
        .get("role")
        .map(|role| role.as_str().and_then(Role::from_name));
    let wrong_role = || wrong(name, ".role", "has to be guest, member or owner");
    Ok(PluginConfig {
        name: name.clone(),
        command: record.manifest.command.iter().map(OsString::from).collect(),
        directory: record.directory.clone(),
        granted: record.manifest.env.clone(),
        config: config(record, settings),
        limits: limits(name, own.get("limits"))?,
        max_role: role.map_or(Ok(Role::Member), |role| role.ok_or_else(wrong_role))?,
        pinned: record.pinned.clone(),
        digest: record.digest.clone(),
    })
}

/// The configuration says something about a plugin that it cannot mean.
fn wrong(name: &str, key: &str, reason: &str) -> Error {
    Error::config(format!("the setting plugins.{name}{key} {reason}"))
}

fn limits(name: &str, given: Option<&Value>) -> Result<Limits> {
    const TIMEOUT_KEYS: &str = "start, hook, synchronous, tool, model and hooks";
    let mut limits = Limits::default();
    let given = match given {
        None | Some(Value::Null) => return Ok(limits),
        Some(Value::Object(given)) => given,
        Some(_) => {
            return Err(wrong(
                name,
                ".limits",
                &format!("has to be a map with {TIMEOUT_KEYS}"),
            ));
        }
    };
    for (key, value) in given {
        let place = format!(".limits.{key}");
        match key.as_str() {
            "start" => limits.start = seconds(name, &place, value)?,
            "hook" => limits.hook = seconds(name, &place, value)?,
            "synchronous" => limits.synchronous = seconds(name, &place, value)?,
            "tool" => limits.tool = seconds(name, &place, value)?,
            "model" => limits.model = seconds(name, &place, value)?,
            "hooks" => {
                let Value::Object(hooks) = value else {
                    return Err(wrong(name, &place, "has to be a map from hooks to seconds"));
                };
                for (hook, value) in hooks {
                    let place = format!("{place}.{hook}");
                    if !HOOKS.iter().any(|known| known.name == hook) {
                        return Err(wrong(
                            name,
                            &place,
                            "is no hook; `bub hooks --all` shows them",
                        ));
                    }
                    limits
                        .hooks
                        .insert(hook.clone(), seconds(name, &place, value)?);
                }
            }
            _ => {
                return Err(wrong(
                    name,
                    &place,
                    &format!("is not known; there are {TIMEOUT_KEYS}"),
                ));
            }
        }
    }
    Ok(limits)
}

fn seconds(name: &str, place: &str, value: &Value) -> Result<Duration> {
    let given = value.as_f64().filter(|seconds| *seconds > 0.0);
    let given = given.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    given.ok_or_else(|| wrong(name, place, "has to be a number of seconds, more than 0"))
}

/// Its own settings, secrets included: they are its own.
fn config(record: &InstalledPlugin, settings: &Settings) -> Value {
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

/// Where a plugin that is being added stands.
pub fn host(
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
