//! Sets up channels that need a token. Tests each channel before its settings are kept.

use std::{collections::HashMap, sync::Arc};

use bub_gateway::settings::ChannelSettings;
use bub_kernel::{Channel, ChannelRole, Error, Framework, Result};
use bub_settings::Settings;

use super::{
    super::{output, probe, prompt},
    Onboarding,
};
use crate::bundled;

/// Returns the channels that need a token and have none.
pub(super) fn names_to_set_up(onboarding: &Onboarding<'_>) -> Result<Vec<String>> {
    let mut channels = list_channels(onboarding.framework)?;
    channels.retain(|channel| {
        !channel.is_enabled()
            && channel.role() != ChannelRole::Interface
            && !missing_secrets(&onboarding.settings, channel.name()).is_empty()
    });
    let names = channels.iter().map(|channel| channel.name().to_owned());
    Ok(names.collect())
}

/// Asks for the settings of a channel until they work or the user skips it.
pub(super) async fn set_up_named(onboarding: &mut Onboarding<'_>, name: &str) -> Result<()> {
    let mut rejected = RejectedChannelInput::default();
    while !set_up_channel(onboarding, name, &mut rejected).await? {}
    Ok(())
}

/// Asks which channels to set up, and sets them up.
pub(super) async fn set_up_channels(onboarding: &mut Onboarding<'_>) -> Result<()> {
    let names = names_to_set_up(onboarding)?;
    if names.is_empty() {
        return Ok(());
    }
    let available = names.join(", ");
    let question = format!("channels to set up ({available}; press Enter to skip)");
    let selected = loop {
        let line = prompt::prompt_line(&question, None).await?;
        let selected = line.split([',', ' ']).filter(|name| !name.is_empty());
        let selected: Vec<_> = selected.map(str::to_owned).collect();
        match selected.iter().find(|name| !names.contains(name)) {
            Some(unknown) => {
                notice!("unknown channel `{unknown}`; available channels: {available}");
            }
            None => break selected,
        }
    };
    for name in selected {
        set_up_named(onboarding, &name).await?;
    }
    Ok(())
}

/// Values that the user entered and that failed the test. They are offered as defaults of the next attempt.
#[derive(Default)]
struct RejectedChannelInput {
    secrets: HashMap<String, String>,
    allowed_users: Option<String>,
}

/// Asks for the settings of a channel and tests them. Returns `false` if the user wants to try again.
async fn set_up_channel(
    onboarding: &mut Onboarding<'_>,
    name: &str,
    rejected: &mut RejectedChannelInput,
) -> Result<bool> {
    let before = onboarding.file.text().to_owned();
    for (key, help) in missing_secrets(&onboarding.settings, name) {
        notice!("{help}");
        let last = rejected.secrets.remove(&key);
        let on_enter = match &last {
            Some(_) => "press Enter to use the same value again".to_owned(),
            None => format!("press Enter to skip {name}"),
        };
        let mut value = prompt::prompt_secret(&format!("{key} (hidden; {on_enter})")).await?;
        if value.is_empty() {
            value = last.unwrap_or_default();
        }
        if value.is_empty() {
            onboarding.file.set_text(before);
            return Ok(true);
        }
        onboarding.set_value(&key, &value)?;
        if let Err(error) = validate_channel(onboarding, name) {
            notice!("{}", output::sanitize_line(error.message()));
            onboarding.file.set_text(before);
            return Ok(false);
        }
        rejected.secrets.insert(key, value);
    }
    let allow_users = format!("{name}.allow_users");
    if onboarding.settings.get_value(&allow_users).is_ok() {
        let configured = || onboarding.settings.text_at(&allow_users);
        let current = rejected.allowed_users.take().or_else(configured);
        let question = format!("{allow_users}, separated by commas (press Enter to skip)");
        let line = prompt::prompt_line(&question, current.as_deref()).await?;
        if !line.is_empty() {
            onboarding.set_value(&allow_users, &line)?;
            rejected.allowed_users = Some(line);
        }
    }
    enable_channel(onboarding, name)?;
    let Some(problem) = test_channel(onboarding, name).await? else {
        return Ok(true);
    };
    notice!("test failed: {}", output::sanitize_line(&problem));
    let again = prompt::confirm("Try again?", true).await?;
    if again || !prompt::confirm("Save anyway?", false).await? {
        onboarding.file.set_text(before);
    }
    Ok(!again)
}

/// Adds a channel to `enabled_channels`, unless the gateway already runs it.
fn enable_channel(onboarding: &mut Onboarding<'_>, name: &str) -> Result<()> {
    let mut names = onboarding
        .revised_settings()?
        .get(ChannelSettings::ENABLED_CHANNELS);
    let is_enabled = names
        .iter()
        .any(|enabled| enabled == "all" || enabled == name);
    let is_excluded = |enabled: &String| enabled.strip_prefix('!').map(str::trim) == Some(name);
    if is_enabled && !names.iter().any(is_excluded) {
        return Ok(());
    }
    names.retain(|enabled| !is_excluded(enabled));
    if !is_enabled {
        names.push(name.to_owned());
    }
    onboarding.set_value("enabled_channels", &names.join(","))
}

/// Fails if the gateway would not start the channel with the values entered so far.
fn validate_channel(onboarding: &Onboarding<'_>, name: &str) -> Result<()> {
    bundled::validate_channel(onboarding.framework, onboarding.revised_settings()?, name)
}

/// Tests a channel with the values entered so far. Returns the problem, if any.
async fn test_channel(onboarding: &Onboarding<'_>, name: &str) -> Result<Option<String>> {
    if !onboarding.runs_tests {
        return Ok(None);
    }
    // The channels of the running program have the old settings.
    let framework = bundled::build_framework(onboarding.framework, onboarding.revised_settings()?);
    let mut channels = list_channels(&framework)?.into_iter();
    let Some(channel) = channels.find(|channel| channel.name() == name) else {
        return Ok(None);
    };
    prompt::print_stderr(&format!("testing {name} … "));
    Ok(match probe::probe_channel(&*channel).await {
        Ok(account) => {
            notice!("{}", account.as_deref().unwrap_or("ok"));
            None
        }
        Err(problem) => Some(onboarding.settings.redactor().redact(&problem).into_owned()),
    })
}

fn list_channels(framework: &Framework) -> Result<Vec<Arc<dyn Channel>>> {
    framework
        .channels(&probe::discard_handler())
        .map_err(|error| Error::unknown(error.message()))
}

/// Returns the missing secrets of a channel, each with its help text.
fn missing_secrets(settings: &Settings, channel: &str) -> Vec<(String, String)> {
    let prefix = format!("{channel}.");
    let entries = settings.entries().filter(|entry| {
        let setting = &entry.setting;
        setting.key.starts_with(&prefix) && setting.secret && entry.display_value.is_null()
    });
    entries
        .map(|entry| {
            (
                entry.setting.key.to_string(),
                entry.setting.help.to_string(),
            )
        })
        .collect()
}
