//! Sets up channels that need a token. Tests each channel before it is kept.

use std::{collections::HashMap, sync::Arc};

use bub_gateway::settings::ENABLED_CHANNELS;
use bub_kernel::{Channel, ChannelRole, Error, Framework, Result};
use bub_settings::Settings;

use super::{
    super::{output, probe, prompt},
    Onboarding,
};
use crate::bundled;

pub(super) async fn set_up_channels(onboarding: &mut Onboarding<'_>) -> Result<()> {
    let disabled = list_channels(onboarding.framework)?.into_iter();
    let disabled = disabled
        .filter(|channel| !channel.is_enabled() && channel.role() != ChannelRole::Interface);
    let names: Vec<_> = disabled.map(|channel| channel.name().to_owned()).collect();
    let names: Vec<_> = names
        .into_iter()
        .filter(|name| !missing_secrets(&onboarding.settings, name).is_empty())
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    let question = format!(
        "channels to set up ({}; press Enter to skip)",
        names.join(", ")
    );
    let selected = loop {
        let line = prompt::prompt_line(&question, None).await?;
        let selected: Vec<String> = line
            .split([',', ' '])
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect();
        match selected.iter().find(|name| !names.contains(name)) {
            Some(unknown) => {
                prompt::print_stderr(&format!(
                    "unknown channel `{unknown}`; available channels: {}\n",
                    names.join(", ")
                ));
            }
            None => break selected,
        }
    };
    for name in selected {
        let mut rejected = RejectedChannelInput::default();
        while !set_up_channel(onboarding, &name, &mut rejected).await? {}
    }
    Ok(())
}

/// Answers that failed the test. They are offered as defaults of the next attempt.
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
        prompt::print_stderr(&format!("{help}\n"));
        let last = rejected.secrets.remove(&key);
        let on_enter = match &last {
            Some(_) => "press Enter to use the same value again".to_owned(),
            None => format!("press Enter to skip {name}"),
        };
        let value = prompt::prompt_secret(&format!("{key} (hidden; {on_enter})")).await?;
        let value = if value.is_empty() {
            last.unwrap_or_default()
        } else {
            value
        };
        if value.is_empty() {
            onboarding.restore_file(before);
            return Ok(true);
        }
        onboarding.set_value(&key, &value)?;
        rejected.secrets.insert(key, value);
    }
    let allow_users = format!("{name}.allow_users");
    if onboarding.settings.get_value(&allow_users).is_ok() {
        let current = rejected
            .allowed_users
            .take()
            .or_else(|| onboarding.settings.text_at(&allow_users));
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
    prompt::print_stderr(&format!(
        "test failed: {}\n",
        output::sanitize_line(&problem)
    ));
    if prompt::confirm("Try again?", true).await? {
        onboarding.restore_file(before);
        return Ok(false);
    }
    if !prompt::confirm("Save anyway?", false).await? {
        onboarding.restore_file(before);
    }
    Ok(true)
}

/// Adds a channel to `enabled_channels`, unless the gateway already runs it.
fn enable_channel(onboarding: &mut Onboarding<'_>, name: &str) -> Result<()> {
    let mut names = onboarding.revised_settings()?.get(&ENABLED_CHANNELS);
    let is_enabled = names
        .iter()
        .any(|enabled| enabled == "all" || enabled == name);
    let is_excluded = |enabled: &String| {
        enabled
            .strip_prefix('!')
            .is_some_and(|excluded| excluded.trim() == name)
    };
    if is_enabled && !names.iter().any(is_excluded) {
        return Ok(());
    }
    names.retain(|enabled| !is_excluded(enabled));
    if !is_enabled {
        names.push(name.to_owned());
    }
    onboarding.set_value("enabled_channels", &names.join(","))
}

/// Tests a channel with the answers so far. Returns the problem, if any.
async fn test_channel(onboarding: &Onboarding<'_>, name: &str) -> Result<Option<String>> {
    if !onboarding.runs_tests {
        return Ok(None);
    }
    // The channels of the running program have the old settings.
    let framework = bundled::build_framework(onboarding.framework, onboarding.revised_settings()?);
    let Some(channel) = list_channels(&framework)?
        .into_iter()
        .find(|channel| channel.name() == name)
    else {
        return Ok(None);
    };
    prompt::print_stderr(&format!("testing {name} … "));
    Ok(match probe::probe_channel(&*channel).await {
        Ok(account) => {
            let account = account.unwrap_or_else(|| "ok".to_owned());
            prompt::print_stderr(&format!("{account}\n"));
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
    let entries = settings
        .entries()
        .filter(|entry| entry.setting.key().starts_with(&prefix));
    let missing =
        entries.filter(|entry| entry.setting.is_secret() && entry.display_value.is_null());
    missing
        .map(|entry| {
            (
                entry.setting.key().to_owned(),
                entry.setting.help().to_owned(),
            )
        })
        .collect()
}
