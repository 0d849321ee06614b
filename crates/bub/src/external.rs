//! The plugins that were added with `bub plugin add`, made part of the program. None of them is started here.

use std::{ffi::OsString, sync::Arc, time::Duration};

use bub_agent::shell::Launcher;
use bub_kernel::{
    Error, FrameworkBuilder, PluginContext, Result, Role, ToolDecision, hooks::HOOKS,
};
use bub_model::settings::{API_BASE, API_KEY, API_KEY_COMMAND};
use bub_plugin::{
    Asker, Descriptor, External, ExternalPlugin, Host, Installed, Limits, Manifest, Record, Setup,
};
use bub_settings::{Declared as _, Found, Settings};
use serde_json::{Map, Value};

use crate::app_settings::PLUGINS;

/// The plugin that speaks for guards that cannot. No plugin that is added can have this name.
const ABSENT_GUARDS: &str = "absent guards";

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
pub(crate) fn load(settings: &mut Settings, bundled_channels: &[&str]) -> Loaded {
    let mut loaded = Loaded::default();
    let installed = match Installed::load(settings.home()) {
        Ok(installed) => installed,
        Err(error) => {
            tracing::error!("plugin.list_unreadable error={}", error.message());
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
            Ok((setup(&record, settings)?, record.descriptor))
        });
        loaded.take(name, is_guard, made);
    }
    for damaged in installed.damaged {
        loaded.take(
            damaged.name().to_owned(),
            damaged.is_guard(),
            Err(Error::config(damaged.problem)),
        );
    }
    loaded
}

impl Loaded {
    fn take(&mut self, name: String, is_guard: bool, made: Result<(Setup, Descriptor)>) {
        if let Err(error) = &made {
            self.deny(&name, is_guard, error.message());
        }
        self.plugins.push((name, made));
    }

    fn deny(&mut self, name: &str, is_guard: bool, why: &str) {
        if is_guard {
            self.denials.push(format!(
                "the plugin {name} would have to decide about this, but is left out: {why}; put that right, or `bub plugin remove {name}`"
            ));
        }
    }

    /// Adds them to the program.
    pub(crate) fn add_to(
        mut self,
        mut builder: FrameworkBuilder,
        shared: &Shared,
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
        builder.plugin(ABSENT_GUARDS, AbsentGuards(self.denials.join("; ")))
    }
}

/// What the program provides to plugins in other processes.
#[derive(Clone, Default)]
pub(crate) struct Shared {
    pub(crate) launcher: Option<Arc<Launcher>>,
    pub(crate) asker: Option<Asker>,
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
pub fn check(record: &Record, bundled_channels: &[&str]) -> Result<()> {
    let Record {
        manifest,
        descriptor,
        ..
    } = record;
    manifest
        .problem()
        .map_or(Ok(()), |why| Err(Error::config(why)))?;
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
    (setup, descriptor): (Setup, Descriptor),
    shared: Shared,
    context: &PluginContext<'_>,
) -> ExternalPlugin {
    let host = Host {
        framework: context.framework.clone(),
        workspace: context.workspace.to_owned(),
        settings: Arc::clone(context.settings),
        launcher: shared.launcher,
        asker: shared.asker,
    };
    ExternalPlugin::new(External::new(setup, descriptor, host), context)
}

/// How a plugin is run, with what the configuration says about it.
pub fn setup(record: &Record, settings: &Settings) -> Result<Setup> {
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
    Ok(Setup {
        name: name.clone(),
        command: record.manifest.command.iter().map(OsString::from).collect(),
        directory: record.directory.clone(),
        granted: record.manifest.env.clone(),
        config: config(record, settings),
        limits: limits(name, own.get("limits"))?,
        most_role: role.map_or(Ok(Role::Member), |role| role.ok_or_else(wrong_role))?,
        pinned: record.pinned.clone(),
        digest: record.digest.clone(),
    })
}

/// The configuration says something about a plugin that it cannot mean.
fn wrong(name: &str, key: &str, why: &str) -> Error {
    Error::config(format!("the setting plugins.{name}{key} {why}"))
}

fn limits(name: &str, given: Option<&Value>) -> Result<Limits> {
    const KNOWN: &str = "start, hook, synchronous, tool, model and hooks";
    let mut limits = Limits::default();
    let given = match given {
        None | Some(Value::Null) => return Ok(limits),
        Some(Value::Object(given)) => given,
        Some(_) => {
            return Err(wrong(
                name,
                ".limits",
                &format!("has to be a map with {KNOWN}"),
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
                    &format!("is not known; there are {KNOWN}"),
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
fn config(record: &Record, settings: &Settings) -> Value {
    let value = |name: &str| match settings
        .get_value(&format!("{}.{name}", record.manifest.name))
        .ok()?
    {
        Found::Value(value) => Some(value),
        Found::Secret(secret) => Some(secret.expose().into()),
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
) -> Host {
    Host {
        framework: bub_kernel::FrameworkRef::default(),
        workspace: workspace.to_owned(),
        settings,
        launcher,
        asker: None,
    }
}
