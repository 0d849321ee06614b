//! `bub config`: what is in force and why, and changing it without losing anything.

mod edit;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use bub::{AppCommand, CommandContext, check_settings};
use bub_kernel::{Error, Result};
use bub_model::{Catalog, ModelId};
use bub_settings::{ConfigFile, EditError, SettingSource, SettingValue, Settings, SettingsError};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};

use super::{output, prompt, tape::text};

/// Exit code for wrong arguments or configuration.
const USAGE: u8 = 2;

pub(super) fn command() -> AppCommand {
    let key = || {
        Arg::new("key")
            .value_name("KEY")
            .required(true)
            .help("Setting, such as `max_steps` or `api_key.NAME`")
    };
    let flag = |name: &'static str, help| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    let command = Command::new("config")
        .about("Show and change settings")
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .subcommand(
            Command::new("list")
                .about("List settings with effective value and source")
                .arg(flag("changed", "Only settings that differ from the default"))
                .arg(flag("json", "Print JSON")),
        )
        .subcommand(
            Command::new("get")
                .about("Print the effective value of a setting")
                .arg(key())
                .arg(flag("json", "Print JSON")),
        )
        .subcommand(
            Command::new("set")
                .about("Set a value in the config file")
                .arg(key())
                .arg(
                    Arg::new("value")
                        .value_name("VALUE")
                        .allow_hyphen_values(true)
                        .help("New value, in the same syntax as the environment variable; reads stdin if omitted or `-`"),
                ),
        )
        .subcommand(Command::new("unset").about("Remove a value from the config file").arg(key()))
        .subcommand(Command::new("path").about("Print the path of the config file"))
        .subcommand(
            Command::new("edit")
                .about("Open the config file in your editor and validate it")
                .long_about(
                    "Open the config file in $VISUAL, $EDITOR or vi and validate it. bub does not save an invalid file; you \
                     can correct it in the editor.",
                ),
        );
    AppCommand::new(command, run).runs_with_invalid_settings()
}

async fn run(context: CommandContext) -> Result<ExitCode> {
    let settings = context.settings;
    let problems = &context.problems.0;
    if let Some(("list" | "get", _)) = context.matches.subcommand() {
        for problem in problems {
            prompt::print_stderr(&format!(
                "error: {}\n",
                output::one_line(&settings.redactor().redact(&problem.to_string()))
            ));
        }
        // What is printed would not be what is in force.
        if !problems.is_empty() {
            return Ok(ExitCode::from(USAGE));
        }
    }
    match context.matches.subcommand() {
        Some(("list", matches)) => list(&settings, matches),
        Some(("get", matches)) => get(&settings, key(matches), matches.get_flag("json")),
        Some(("set", matches)) => set(&settings, key(matches), matches).await,
        Some(("unset", matches)) => unset(&settings, key(matches)),
        Some(("edit", _)) => edit::edit(&settings).await,
        _ => output::print(&format!("{}\n", settings.config_file().display())),
    }
}

fn key(matches: &ArgMatches) -> &str {
    matches.get_one::<String>("key").map_or("", String::as_str)
}

fn list(settings: &Settings, matches: &ArgMatches) -> Result<ExitCode> {
    let changed = matches.get_flag("changed");
    let entries = settings
        .entries()
        .filter(|entry| !changed || entry.origin != SettingSource::Default);
    let text = if matches.get_flag("json") {
        entries.fold(String::new(), |text, entry| {
            text + &as_json(&entry).to_string() + "\n"
        })
    } else {
        let row = |entry: SettingValue<'_>| {
            [
                entry.setting.key().to_owned(),
                text::line(&plain(&entry.shown)),
                entry.origin.to_string(),
            ]
        };
        text::columns(&entries.map(row).collect::<Vec<_>>())
    };
    output::print_text(&settings.redactor().redact(&text))
}

fn as_json(entry: &SettingValue<'_>) -> Value {
    json!({
        "key": entry.setting.key(),
        "value": entry.shown,
        "default": entry.default,
        "source": entry.origin.to_string(),
        "variable": entry.setting.variable(),
        "expected": entry.setting.expected(),
        "help": entry.setting.help(),
    })
}

fn get(settings: &Settings, key: &str, as_json: bool) -> Result<ExitCode> {
    let found = settings
        .get_value(key)
        .map_err(|error| Error::invalid_input(error.to_string()))?
        .to_display_value();
    let text = if as_json {
        let origin = settings.origin(key).map(|origin| origin.to_string());
        json!({"key": key, "value": found, "source": origin}).to_string()
    } else {
        plain(&found)
    };
    output::print_text(&settings.redactor().redact(&format!("{text}\n")))
}

/// A value as people write it.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) if items.iter().all(Value::is_string) => items
            .iter()
            .filter_map(Value::as_str)
            .collect::<Vec<_>>()
            .join(", "),
        value => value.to_string(),
    }
}

async fn set(settings: &Settings, key: &str, matches: &ArgMatches) -> Result<ExitCode> {
    let given = matches
        .get_one::<String>("value")
        .filter(|value| *value != "-")
        .cloned();
    let text = match given {
        Some(text) => text,
        None if prompt::has_terminal() => prompt::secret(&format!("value of {key}")).await?,
        None => prompt::read_stdin()?,
    };
    let before = plain_owner(settings, &open(settings)?);
    let revised = change(settings, |file| {
        let owner = owner(settings, file);
        set_value(settings, file, owner.as_deref(), key, &text)?;
        if key == "model" {
            keep_provider_values(settings, file, before.as_deref())
        } else {
            Ok(())
        }
    })?;
    warn_overridden(&revised, key);
    if key == "model" {
        note_owner(settings, &revised, before.as_deref())?;
    }
    output::print(&format!(
        "set {key} in {}\n",
        settings.config_file().display()
    ))
}

/// Says when another place decides what a setting in the file is.
pub(super) fn warn_overridden(revised: &Settings, key: &str) {
    if let Some(origin) = revised
        .origin(key)
        .filter(|origin| !matches!(origin, SettingSource::Config { .. }))
    {
        prompt::print_stderr(&format!(
            "note: {origin} is stronger, so `{key}` stays what it says\n"
        ));
    }
}

fn unset(settings: &Settings, key: &str) -> Result<ExitCode> {
    let before = plain_owner(settings, &open(settings)?);
    let revised = change(settings, |file| {
        if file
            .unset(&key.split('.').collect::<Vec<_>>())
            .map_err(refused)?
        {
            return if key == "model" {
                keep_provider_values(settings, file, before.as_deref())
            } else {
                Ok(())
            };
        }
        let hint = settings
            .get_value(key)
            .err()
            .map_or(String::new(), |error| format!("; {error}"));
        let file = settings.config_file().display();
        Err(Error::invalid_input(format!(
            "{file} does not set `{key}`{hint}"
        )))
    })?;
    if let Some(origin) = revised
        .origin(key)
        .filter(|origin| *origin != SettingSource::Default)
    {
        prompt::print_stderr(&format!("note: {origin} still sets `{key}`\n"));
    }
    if key == "model" {
        note_owner(settings, &revised, before.as_deref())?;
    }
    output::print(&format!(
        "unset {key} in {}\n",
        settings.config_file().display()
    ))
}

/// How long a change is made again because others change the file, too.
const WRITE_RETRY_TIMEOUT: Duration = Duration::from_secs(5);

/// Changes the file as it is now; when somebody else wrote it in the meantime, once more.
fn change(settings: &Settings, edit: impl Fn(&mut ConfigFile) -> Result<()>) -> Result<Settings> {
    let end = Instant::now() + WRITE_RETRY_TIMEOUT;
    loop {
        let mut file = open(settings)?;
        edit(&mut file)?;
        let saved = save_repaired(settings, &mut file);
        let is_other = || open(settings).is_ok_and(|now| now.text() != file.before());
        if saved.is_ok() || Instant::now() > end || !is_other() {
            return saved;
        }
    }
}

/// The provider that a key or an address for all providers was meant for: the one of the model.
pub(super) fn owner(settings: &Settings, file: &ConfigFile) -> Option<String> {
    let in_file = file
        .value()
        .ok()
        .and_then(|map| Some(map.get("model")?.as_str()?.to_owned()));
    let elsewhere = || {
        settings
            .text_at("model")
            .filter(|_| !is_in_file(settings.origin("model").as_ref()))
    };
    let model = in_file.or_else(elsewhere)?.parse::<ModelId>().ok()?;
    Some(model.provider().to_owned())
}

/// The provider that what stands in the file for all providers goes to: that of the model; without one, the one that the
/// key looks like.
pub(super) fn plain_owner(settings: &Settings, file: &ConfigFile) -> Option<String> {
    let owner = owner(settings, file).or_else(|| super::onboard::model::owner(settings, file))?;
    let known = Catalog::new(settings)
        .ok()
        .and_then(|known| Some(known.get(&owner)?.name.clone()));
    Some(known.unwrap_or(owner))
}

/// Another provider gets neither the key nor the address of the one before; they stay with that one.
pub(super) fn keep_provider_values(
    settings: &Settings,
    file: &mut ConfigFile,
    before: Option<&str>,
) -> Result<()> {
    if before.is_none() || plain_owner(settings, file).as_deref() == before {
        return Ok(());
    }
    PER_PROVIDER_SETTINGS
        .into_iter()
        .try_for_each(|whole| scope_to_provider(file, before, whole))
}

fn is_in_file(origin: Option<&SettingSource>) -> bool {
    matches!(origin, Some(SettingSource::Config { .. }))
}

/// Says what a new model means for the key and the address that stood there for all providers.
fn note_owner(settings: &Settings, revised: &Settings, before: Option<&str>) -> Result<()> {
    let after = plain_owner(revised, &open(revised)?);
    let Some((before, after)) = before
        .zip(after.as_deref())
        .filter(|(before, after)| before != after)
    else {
        return Ok(());
    };
    for whole in PER_PROVIDER_SETTINGS {
        let plain = |settings: &Settings| {
            settings
                .origin(&format!("{whole}.*"))
                .filter(|origin| *origin != SettingSource::Default)
        };
        match (plain(settings), plain(revised)) {
            (Some(_), None) => prompt::print_stderr(&format!(
                "note: `{whole}` was for `{before}` and stays there, as `{whole}.{before}`; `{after}` has `{whole}.{after}`\n"
            )),
            (Some(_), Some(origin))
                if is_in_file(revised.origin("model").as_ref()) && !is_in_file(Some(&origin)) =>
            {
                prompt::print_stderr(&format!(
                    "note: {origin} was for `{before}`; now it is for `{after}`\n"
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Sets one value from text. One value that stands where one for each provider is to stand stays with its owner.
pub(super) fn set_value(
    settings: &Settings,
    file: &mut ConfigFile,
    owner: Option<&str>,
    path: &str,
    text: &str,
) -> Result<()> {
    let value = settings
        .value_for(path, text)
        .map_err(|error| Error::invalid_input(error.to_string()))?;
    let keys: Vec<_> = path.split('.').collect();
    let old = Value::Object(file.value().map_err(refused)?);
    let old = keys.iter().try_fold(&old, |value, key| value.get(key));
    if old
        .and_then(Value::as_object)
        .is_some_and(|map| !map.is_empty())
        && !value.is_object()
    {
        return Err(Error::invalid_input(format!(
            "`{path}` is a map in {}, and one value would replace all of it; set `{path}.<name>`, or unset `{path}` first",
            settings.config_file().display()
        )));
    }
    if let [whole, _] = keys.as_slice()
        && PER_PROVIDER_SETTINGS.contains(whole)
    {
        scope_to_provider(file, owner, whole)?;
    }
    file.set(&keys, &value).map_err(refused)
}

/// The settings that have one value, or one for each provider.
pub(super) const PER_PROVIDER_SETTINGS: [&str; 3] = ["api_key", "api_base", "api_key_command"];

/// Makes the one value at a key that of its owner alone.
pub(super) fn scope_to_provider(
    file: &mut ConfigFile,
    owner: Option<&str>,
    whole: &str,
) -> Result<()> {
    match file.value().map_err(refused)?.get(whole) {
        None | Some(Value::Null | Value::Object(_) | Value::Array(_)) => Ok(()),
        // Nobody's is still everybody's.
        Some(old) => file
            .set(&[whole], &json!({owner.unwrap_or("*"): old}))
            .map_err(refused),
    }
}

pub(super) fn open(settings: &Settings) -> Result<ConfigFile> {
    ConfigFile::open(settings.config_file()).map_err(refused)
}

fn refused(error: EditError) -> Error {
    match error {
        EditError::Unwritable { .. } | EditError::Changed { .. } => {
            Error::unknown(error.to_string())
        }
        error => Error::config(error.to_string()),
    }
}

/// What would be in force with this file; a mistake that is new in it is the error. What is wrong elsewhere, and what was
/// wrong before, is no reason to refuse: two mistakes can only be corrected one after the other.
pub(super) fn checked(settings: &Settings, file: &ConfigFile) -> Result<Settings> {
    let wrong = |error: SettingsError| Error::config(error.to_string());
    let (revised, problems) = settings.revised(file.text()).map_err(wrong)?;
    let (before, known) = match settings.revised(file.before()) {
        Ok((before, known)) => (Some(before), known),
        // That was no configuration at all.
        Err(_) => (None, Vec::new()),
    };
    let known: Vec<_> = known.iter().filter_map(problem_in_file).collect();
    let is_new = |error: &&SettingsError| {
        problem_in_file(error).is_some_and(|mistake| !known.contains(&mistake))
    };
    if let Some(error) = problems.iter().find(is_new) {
        return Err(Error::config(error.to_string()));
    }
    if before.is_none_or(|before| check_settings(&before).is_ok()) {
        check_settings(&revised).map_err(Error::config)?;
    }
    Ok(revised)
}

/// What is wrong in the file, wherever it stands in it.
fn problem_in_file(error: &SettingsError) -> Option<(&str, &str)> {
    match error {
        SettingsError::Invalid {
            origin: SettingSource::Config { .. },
            key,
            found,
            ..
        } => Some((key, found)),
        SettingsError::Unknown {
            origin: SettingSource::Config { .. },
            name,
            ..
        } => Some((name, "")),
        _ => None,
    }
}

/// Writes a file that is right, and says what is in force with it.
pub(super) fn save(settings: &Settings, file: &mut ConfigFile) -> Result<Settings> {
    let revised = checked(settings, file)?;
    edit::remove_leftovers(settings.home());
    file.save(revised.has_secrets_in_file()).map_err(refused)?;
    Ok(revised)
}

/// The same, and names a mistake that is left.
pub(super) fn save_repaired(settings: &Settings, file: &mut ConfigFile) -> Result<Settings> {
    let revised = save(settings, file)?;
    report_problems(settings, &revised, file);
    Ok(revised)
}

/// Names what is wrong in the file.
pub(super) fn report_problems(settings: &Settings, revised: &Settings, file: &ConfigFile) {
    let left = settings
        .revised(file.text())
        .map(|(_, problems)| problems)
        .unwrap_or_default();
    let left = left
        .iter()
        .filter(|error| problem_in_file(error).is_some())
        .map(ToString::to_string);
    for problem in left.chain(check_settings(revised).err()) {
        prompt::print_stderr(&format!(
            "note: still wrong: {}\n",
            output::one_line(&settings.redactor().redact(&problem))
        ));
    }
}
