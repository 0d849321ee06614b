//! The plugins that were added with `bub plugin add`, made part of the program. None of them is started here.

use std::{collections::HashMap, ffi::OsString, sync::Arc, time::Duration};

use bub_agent::shell::Launcher;
use bub_kernel::{Error, FrameworkBuilder, PluginContext, Result, Role};
use bub_plugin::{External, ExternalPlugin, Host, Installed, Limits, Record, Setup};
use bub_settings::{Found, Settings, core};
use serde_json::{Map, Value};

/// The plugins that are in use, in the order of registration. A list that cannot be read stops nothing.
pub(crate) fn records(settings: &Settings) -> Vec<Record> {
    let installed = Installed::load(settings.home()).unwrap_or_else(|error| {
        tracing::error!("plugin.list_unreadable error={}", error.message());
        Installed::default()
    });
    installed.plugins.into_iter().filter(|record| record.enabled).collect()
}

/// Adds them to the program.
pub(crate) fn add(builder: FrameworkBuilder, records: Vec<Record>) -> FrameworkBuilder {
    records.into_iter().fold(builder, |builder, record| {
        let name = record.manifest.name.clone();
        builder.plugin_with(name, move |context| make(record, context))
    })
}

fn make(record: Record, context: &PluginContext<'_>) -> Result<ExternalPlugin> {
    record.descriptor.check()?;
    let settings = context.service::<Settings>();
    let settings =
        settings.ok_or_else(|| Error::config("a plugin needs the program's settings as a service"))?;
    let setup = setup(&record, &settings)?;
    let host = Host {
        framework: context.framework.clone(),
        workspace: context.workspace.to_owned(),
        settings,
        launcher: context.service::<Launcher>(),
    };
    Ok(ExternalPlugin::new(External::new(setup, record.descriptor, host), context))
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
            ("hooks", Value::Object(hooks)) => {
                let own = hooks.iter().map(|(hook, value)| Ok((hook.clone(), seconds(name, hook, value)?)));
                limits.hooks = own.collect::<Result<HashMap<_, _>>>()?;
            }
            _ => {
                return Err(Error::config(format!(
                    "plugins.{name}.limits.{key}: there are start, hook, synchronous, tool and hooks, in seconds"
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
