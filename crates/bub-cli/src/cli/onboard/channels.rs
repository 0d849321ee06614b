//! Channels that need a token: asked for, tried, and only then kept.

use std::{collections::HashMap, sync::Arc};

use bub_gateway::settings::ENABLED_CHANNELS;
use bub_kernel::{Channel, ChannelRole, Error, Framework, Result};
use bub_settings::Settings;

use super::{
    super::{output, probe, prompt},
    Onboarding,
};
use crate::bundled;

pub(super) async fn ask(onboarding: &mut Onboarding<'_>) -> Result<()> {
    let off = channels(onboarding.framework)?.into_iter();
    let off = off.filter(|channel| !channel.enabled() && channel.role() != ChannelRole::Interface);
    let names: Vec<_> = off.map(|channel| channel.name().to_owned()).collect();
    let names: Vec<_> = names
        .into_iter()
        .filter(|name| !secrets(&onboarding.settings, name).is_empty())
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    let question = format!("channels to set up ({}; Enter for none)", names.join(", "));
    let wanted = loop {
        let line = prompt::line(&question, None).await?;
        let wanted: Vec<String> = line
            .split([',', ' '])
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect();
        match wanted.iter().find(|name| !names.contains(name)) {
            Some(unknown) => {
                prompt::print_stderr(&format!("There is no channel `{unknown}` to set up\n"));
            }
            None => break wanted,
        }
    };
    for name in wanted {
        let mut tried = RejectedChannelInput::default();
        while !one(onboarding, &name, &mut tried).await? {}
    }
    Ok(())
}

/// What was answered the last time, and did not work: offered again.
#[derive(Default)]
struct RejectedChannelInput {
    secrets: HashMap<String, String>,
    people: Option<String>,
}

/// Asks about one channel; says whether that is settled.
async fn one(
    onboarding: &mut Onboarding<'_>,
    name: &str,
    tried: &mut RejectedChannelInput,
) -> Result<bool> {
    let before = onboarding.file.text().to_owned();
    for (key, help) in secrets(&onboarding.settings, name) {
        prompt::print_stderr(&format!("{help}\n"));
        let last = tried.secrets.remove(&key);
        let otherwise = match &last {
            Some(_) => "Enter for the same again".to_owned(),
            None => format!("Enter to leave {name} off"),
        };
        let value = prompt::secret(&format!("{key} (is not shown; {otherwise})")).await?;
        let value = if value.is_empty() {
            last.unwrap_or_default()
        } else {
            value
        };
        if value.is_empty() {
            onboarding.back_to(before);
            return Ok(true);
        }
        onboarding.set(&key, &value)?;
        tried.secrets.insert(key, value);
    }
    let people = format!("{name}.allow_users");
    if onboarding.settings.get_value(&people).is_ok() {
        let current = tried
            .people
            .take()
            .or_else(|| onboarding.settings.text_at(&people));
        let question = format!("{people}, with commas between them (Enter for nobody yet)");
        let line = prompt::line(&question, current.as_deref()).await?;
        if !line.is_empty() {
            onboarding.set(&people, &line)?;
            tried.people = Some(line);
        }
    }
    enable(onboarding, name)?;
    let Some(problem) = problem(onboarding, name).await? else {
        return Ok(true);
    };
    prompt::print_stderr(&format!(
        "That does not work: {}\n",
        output::one_line(&problem)
    ));
    if prompt::confirm("Try again?", true).await? {
        onboarding.back_to(before);
        return Ok(false);
    }
    if !prompt::confirm("Save it all the same?", false).await? {
        onboarding.back_to(before);
    }
    Ok(true)
}

/// A channel that was set up is meant to run.
fn enable(onboarding: &mut Onboarding<'_>, name: &str) -> Result<()> {
    let mut names = onboarding.revised()?.get(&ENABLED_CHANNELS);
    let runs = names.iter().any(|known| known == "all" || known == name);
    let is_excluded = |known: &String| {
        known
            .strip_prefix('!')
            .is_some_and(|known| known.trim() == name)
    };
    if runs && !names.iter().any(is_excluded) {
        return Ok(());
    }
    names.retain(|known| !is_excluded(known));
    if !runs {
        names.push(name.to_owned());
    }
    onboarding.set("enabled_channels", &names.join(","))
}

async fn problem(onboarding: &Onboarding<'_>, name: &str) -> Result<Option<String>> {
    if !onboarding.tries {
        return Ok(None);
    }
    // The channels of the running program know the old settings.
    let framework = bundled::framework(onboarding.framework, onboarding.revised()?);
    let Some(channel) = channels(&framework)?
        .into_iter()
        .find(|channel| channel.name() == name)
    else {
        return Ok(None);
    };
    prompt::print_stderr(&format!("asking {name} … "));
    Ok(match probe::channel(&*channel).await {
        Ok(who) => {
            prompt::print_stderr(&format!("{}\n", who.unwrap_or_else(|| "ready".to_owned())));
            None
        }
        Err(problem) => Some(onboarding.settings.redactor().redact(&problem).into_owned()),
    })
}

fn channels(framework: &Framework) -> Result<Vec<Arc<dyn Channel>>> {
    framework
        .channels(&probe::discard_handler())
        .map_err(|error| Error::unknown(error.message()))
}

/// The secrets that a channel is off without, each with what it is.
fn secrets(settings: &Settings, channel: &str) -> Vec<(String, String)> {
    let prefix = format!("{channel}.");
    let own = settings
        .entries()
        .filter(|entry| entry.setting.key().starts_with(&prefix));
    let missing = own.filter(|entry| entry.setting.is_secret() && entry.shown.is_null());
    missing
        .map(|entry| {
            (
                entry.setting.key().to_owned(),
                entry.setting.help().to_owned(),
            )
        })
        .collect()
}
