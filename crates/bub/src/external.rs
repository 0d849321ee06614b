//! The plugins that were added with `bub plugin add`, made part of the program. None of them is started here.

use std::{collections::HashMap, ffi::OsString, sync::Arc, time::Duration};

use bub_agent::shell::Launcher;
use bub_kernel::{Error, FrameworkBuilder, PluginContext, Result, Role, ToolDecision};
use bub_plugin::{Descriptor, External, ExternalPlugin, Host, Installed, Limits, Manifest, Record, Setup};
use bub_settings::{Declared as _, Found, Settings, core};
use serde_json::{Map, Value};

/// The plugin that speaks for guards that cannot.
const ABSENT_GUARDS: &str = "absent-guards";

/// The plugins of a home, in the order of registration.
#[derive(Default)]
pub(crate) struct Loaded {
    /// Each with how it is run, or why it is left out.
    plugins: Vec<(String, Result<(Setup, Descriptor)>)>,
    /// Why no tool may be called: somebody would have to decide about that, and is not there.
    denials: Vec<String>,
}

/// Reads the list of plugins. Nothing that stands in it, or in what plugins declare, stops the program; a guard that is
/// left out denies.
pub(crate) fn load(settings: &mut Settings) -> Loaded {
    let mut loaded = Loaded::default();
    let installed = match Installed::load(settings.home()) {
        Ok(installed) => installed,
        Err(error) => {
            tracing::error!("plugin.list_unreadable error={}", error.message());
            loaded.denials.push(format!("the list of plugins cannot be read: {}", error.message()));
            return loaded;
        }
    };
    for record in installed.plugins.into_iter().filter(|record| record.enabled) {
        let is_guard = record.descriptor.is_guard();
        let name = record.manifest.name.clone();
        let made = check(&record).and_then(|()| {
            settings.register(record.manifest.section()).map_err(|error| Error::config(error.to_string()))?;
            Ok((setup(&record, settings)?, record.descriptor))
        });
        loaded.take(name, is_guard, made);
    }
    for damaged in installed.damaged {
        loaded.take(damaged.name().to_owned(), damaged.is_guard(), Err(Error::config(damaged.problem)));
    }
    loaded
}

impl Loaded {
    fn take(&mut self, name: String, is_guard: bool, made: Result<(Setup, Descriptor)>) {
        if let (Err(error), true) = (&made, is_guard) {
            let why = error.message();
            self.denials.push(format!(
                "the plugin {name} would have to decide about this, but is left out: {why}; put that right, or `bub plugin remove {name}`"
            ));
        }
        self.plugins.push((name, made));
    }

    /// Adds them to the program.
    pub(crate) fn add_to(self, builder: FrameworkBuilder) -> FrameworkBuilder {
        let builder = self.plugins.into_iter().fold(builder, |builder, (name, made)| {
            builder.plugin_with(name, move |context| make(made?, context))
        });
        if self.denials.is_empty() {
            return builder;
        }
        builder.plugin(ABSENT_GUARDS, AbsentGuards(self.denials.join("; ")))
    }
}

/// Denies every tool call.
struct AbsentGuards(String);

#[bub_macros::hooks(crate = bub_kernel)]
impl AbsentGuards {
    fn before_tool_call(&self) -> ToolDecision {
        ToolDecision::Deny(Some(self.0.clone()))
    }
}

/// Checks what a plugin wants to be against what there is already.
pub(crate) fn check(record: &Record) -> Result<()> {
    let Record { manifest, descriptor, .. } = record;
    descriptor.check()?;
    let is_builtin = |name: &str| bub_channels::NAMES.contains(&name) || name == bub_terminal::channel::NAME;
    if let Some(channel) = descriptor.channels.iter().find(|own| is_builtin(&own.name)) {
        return Err(Error::config(format!("there is a channel `{}` already", channel.name)));
    }
    check_settings(manifest)
}

/// `BUB_OPENAI_API_KEY` is the key of a provider, however a plugin and its setting share that name; it may be a provider
/// that is only known later.
pub(crate) fn check_settings(manifest: &Manifest) -> Result<()> {
    let of_providers = [core::API_KEY.setting(), core::API_BASE.setting(), core::API_KEY_COMMAND.setting()];
    for own in &manifest.settings {
        let variable = format!("BUB_{}_{}", manifest.name, own.name).to_ascii_uppercase();
        if of_providers.iter().any(|key| variable.ends_with(&format!("_{}", key.key().to_ascii_uppercase())))
        {
            return Err(Error::config(format!(
                "{variable} is a setting of a provider; call `{}` otherwise",
                own.name
            )));
        }
    }
    Ok(())
}

fn make((setup, descriptor): (Setup, Descriptor), context: &PluginContext<'_>) -> Result<ExternalPlugin> {
    let settings = context.service::<Settings>();
    let settings =
        settings.ok_or_else(|| Error::config("a plugin needs the program's settings as a service"))?;
    let host = Host {
        framework: context.framework.clone(),
        workspace: context.workspace.to_owned(),
        settings,
        launcher: context.service::<Launcher>(),
    };
    Ok(ExternalPlugin::new(External::new(setup, descriptor, host), context))
}

/// How a plugin is run, with what the configuration says about it.
pub(crate) fn setup(record: &Record, settings: &Settings) -> Result<Setup> {
    let name = &record.manifest.name;
    let all = settings.get(&core::PLUGINS);
    let own = all.get(name).and_then(Value::as_object).cloned().unwrap_or_default();
    let role = own.get("role").and_then(Value::as_str);
    let wrong_role = || Error::config(format!("plugins.{name}.role has to be guest, member or owner"));
    Ok(Setup {
        name: name.clone(),
        command: record.manifest.command.iter().map(OsString::from).collect(),
        directory: record.directory.clone(),
        granted: record.manifest.env.clone(),
        config: config(record, settings),
        limits: limits(name, own.get("limits"))?,
        most_role: role.map_or(Ok(Role::Member), |role| Role::from_name(role).ok_or_else(wrong_role))?,
        pinned: record.pinned.clone(),
        digest: record.digest.clone(),
    })
}

fn limits(name: &str, given: Option<&Value>) -> Result<Limits> {
    let mut limits = Limits::default();
    for (key, value) in given.and_then(Value::as_object).into_iter().flatten() {
        match (key.as_str(), value) {
            ("start", value) => limits.start = seconds(name, key, value)?,
            ("hook", value) => limits.hook = seconds(name, key, value)?,
            ("synchronous", value) => limits.synchronous = seconds(name, key, value)?,
            ("tool", value) => limits.tool = seconds(name, key, value)?,
            ("model", value) => limits.model = seconds(name, key, value)?,
            ("hooks", Value::Object(hooks)) => {
                let own = hooks.iter().map(|(hook, value)| Ok((hook.clone(), seconds(name, hook, value)?)));
                limits.hooks = own.collect::<Result<HashMap<_, _>>>()?;
            }
            _ => {
                return Err(Error::config(format!(
                    "plugins.{name}.limits.{key}: there are start, hook, synchronous, tool, model and hooks, in seconds"
                )));
            }
        }
    }
    Ok(limits)
}

fn seconds(name: &str, key: &str, value: &Value) -> Result<Duration> {
    let given = value.as_f64().filter(|seconds| *seconds > 0.0);
    let given = given.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    given
        .ok_or_else(|| Error::config(format!("plugins.{name}.limits: `{key}` has to be a number of seconds")))
}

/// Its own settings, secrets included: they are its own.
fn config(record: &Record, settings: &Settings) -> Value {
    let value = |name: &str| match settings.get_value(&format!("{}.{name}", record.manifest.name)).ok()? {
        Found::Value(value) => Some(value),
        Found::Secret(secret) => Some(secret.expose().into()),
    };
    let entries = record.manifest.settings.iter();
    let entries = entries.filter_map(|entry| Some((entry.name.clone(), value(&entry.name)?)));
    Value::Object(entries.filter(|(_, value)| !value.is_null()).collect::<Map<_, _>>())
}

/// Where a plugin that is being added stands.
pub(crate) fn host(
    settings: Arc<Settings>,
    workspace: &std::path::Path,
    launcher: Option<Arc<Launcher>>,
) -> Host {
    Host {
        framework: bub_kernel::FrameworkRef::default(),
        workspace: workspace.to_owned(),
        settings,
        launcher,
    }
}
