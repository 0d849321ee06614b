//! `bub config`: shows effective settings with their source, and changes the config file without losing comments.

mod edit;

use std::{
    borrow::Cow,
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

/// Exit code for invalid arguments or configuration.
const EXIT_USAGE: u8 = 2;

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
    AppCommand::new(command, run).allow_invalid_settings()
}

async fn run(context: CommandContext) -> Result<ExitCode> {
    let settings = context.settings;
    let problems = &context.problems.0;
    if let Some(("list" | "get", _)) = context.matches.subcommand() {
        for problem in problems {
            prompt::print_stderr(&format!(
                "error: {}\n",
                output::sanitize_line(&settings.redactor().redact(&problem.to_string()))
            ));
        }
        // With invalid settings, the printed values would not be the effective ones.
        if !problems.is_empty() {
            return Ok(ExitCode::from(EXIT_USAGE));
        }
    }
    match context.matches.subcommand() {
        Some(("list", matches)) => list_settings(&settings, matches),
        Some(("get", matches)) => {
            let key = current_key(&settings, matches);
            print_setting(&settings, &key, matches.get_flag("json"))
        }
        Some(("set", matches)) => {
            set_setting(&settings, &current_key(&settings, matches), matches).await
        }
        Some(("unset", matches)) => unset_setting(&settings, &current_key(&settings, matches)),
        Some(("edit", _)) => edit::edit_config(&settings).await,
        _ => output::print(&format!("{}\n", settings.config_file().display())),
    }
}

/// Returns the key on the command line. Replaces a former key with the new one and warns.
fn current_key<'a>(settings: &Settings, matches: &'a ArgMatches) -> Cow<'a, str> {
    let key = matches.get_one::<String>("key").map_or("", String::as_str);
    let current = settings.current_path(key);
    if current != key {
        prompt::print_stderr(&format!(
            "warning: `{key}` is deprecated; use `{current}`\n"
        ));
    }
    current
}

/// Removes the former keys of a setting from the config file. Returns whether there was one.
fn unset_former_keys(settings: &Settings, file: &mut ConfigFile, key: &str) -> Result<bool> {
    let entry = settings.entries().find(|entry| entry.setting.key() == key);
    let names = entry.map_or(&[][..], |entry| entry.setting.deprecated_names());
    names.iter().try_fold(false, |is_unset, name| {
        let path: Vec<_> = name.split('.').collect();
        Ok(file.unset(&path).map_err(edit_error)? || is_unset)
    })
}

fn list_settings(settings: &Settings, matches: &ArgMatches) -> Result<ExitCode> {
    let changed = matches.get_flag("changed");
    let entries = settings
        .entries()
        .filter(|entry| !changed || entry.origin != SettingSource::Default);
    let text = if matches.get_flag("json") {
        entries.fold(String::new(), |text, entry| {
            text + &to_json(&entry).to_string() + "\n"
        })
    } else {
        let row = |entry: SettingValue<'_>| {
            [
                entry.setting.key().to_owned(),
                text::sanitize_line(&format_value(&entry.display_value)),
                entry.origin.to_string(),
            ]
        };
        text::format_columns(&entries.map(row).collect::<Vec<_>>())
    };
    output::print_untrusted(&settings.redactor().redact(&text))
}

fn to_json(entry: &SettingValue<'_>) -> Value {
    json!({
        "key": entry.setting.key(),
        "value": entry.display_value,
        "default": entry.default,
        "source": entry.origin.to_string(),
        "variable": entry.setting.variable(),
        "expected": entry.setting.describe_expected(),
        "help": entry.setting.help(),
    })
}

fn print_setting(settings: &Settings, key: &str, as_json: bool) -> Result<ExitCode> {
    let value = settings
        .get_value(key)
        .map_err(|error| Error::invalid_input(error.to_string()))?
        .to_display_value();
    let text = if as_json {
        let origin = settings.origin(key).map(|origin| origin.to_string());
        json!({"key": key, "value": value, "source": origin}).to_string()
    } else {
        format_value(&value)
    };
    output::print_untrusted(&settings.redactor().redact(&format!("{text}\n")))
}

/// Formats a value as users write it.
pub(super) fn format_value(value: &Value) -> String {
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

async fn set_setting(settings: &Settings, key: &str, matches: &ArgMatches) -> Result<ExitCode> {
    let argument = matches
        .get_one::<String>("value")
        .filter(|value| *value != "-")
        .cloned();
    let text = match argument {
        Some(text) => text,
        None if prompt::has_terminal() => prompt::prompt_secret(&format!("value of {key}")).await?,
        None => prompt::read_stdin()?,
    };
    let before = unscoped_owner(settings, &open_file(settings)?);
    let revised = edit_file(settings, |file| {
        let owner = model_provider(settings, file);
        set_value(settings, file, owner.as_deref(), key, &text)?;
        unset_former_keys(settings, file, key)?;
        if key == "model" {
            keep_provider_values(settings, file, before.as_deref())
        } else {
            Ok(())
        }
    })?;
    warn_overridden(&revised, key);
    if key == "model" {
        print_owner_change(settings, &revised, before.as_deref())?;
    }
    output::print(&format!(
        "set {key} in {}\n",
        settings.config_file().display()
    ))
}

/// Prints a note if another source overrides a setting in the file.
pub(super) fn warn_overridden(revised: &Settings, key: &str) {
    if let Some(origin) = revised
        .origin(key)
        .filter(|origin| !matches!(origin, SettingSource::Config { .. }))
    {
        prompt::print_stderr(&format!(
            "note: {origin} overrides `{key}` in the config file\n"
        ));
    }
}

fn unset_setting(settings: &Settings, key: &str) -> Result<ExitCode> {
    let before = unscoped_owner(settings, &open_file(settings)?);
    let revised = edit_file(settings, |file| {
        let path: Vec<_> = key.split('.').collect();
        let is_unset = file.unset(&path).map_err(edit_error)?;
        if unset_former_keys(settings, file, key)? || is_unset {
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
        print_owner_change(settings, &revised, before.as_deref())?;
    }
    output::print(&format!(
        "unset {key} in {}\n",
        settings.config_file().display()
    ))
}

/// How long a change is retried while other processes change the file.
const WRITE_RETRY_TIMEOUT: Duration = Duration::from_secs(5);

/// Edits and saves the config file. Retries if another process wrote the file in the meantime.
fn edit_file(
    settings: &Settings,
    edit: impl Fn(&mut ConfigFile) -> Result<()>,
) -> Result<Settings> {
    let end = Instant::now() + WRITE_RETRY_TIMEOUT;
    loop {
        let mut file = open_file(settings)?;
        edit(&mut file)?;
        let saved = save_and_report(settings, &mut file);
        let has_changed = || open_file(settings).is_ok_and(|now| now.text() != file.text_on_disk());
        if saved.is_ok() || Instant::now() > end || !has_changed() {
            return saved;
        }
    }
}

/// Returns the provider of the configured model. Unscoped keys and base URLs belong to it.
pub(super) fn model_provider(settings: &Settings, file: &ConfigFile) -> Option<String> {
    let in_file = file
        .parse()
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

/// Returns the provider that uses the unscoped keys and base URLs in the file: the provider of the model, or without a
/// model the provider whose keys look like the one in the file.
pub(super) fn unscoped_owner(settings: &Settings, file: &ConfigFile) -> Option<String> {
    let owner = model_provider(settings, file)
        .or_else(|| super::onboard::model::unscoped_key_owner(settings, file))?;
    let canonical_name = Catalog::new(settings)
        .ok()
        .and_then(|catalog| Some(catalog.get(&owner)?.name.clone()));
    Some(canonical_name.unwrap_or(owner))
}

/// If the provider changed, assigns unscoped keys and base URLs to the previous provider, so that the new one does not
/// receive them.
pub(super) fn keep_provider_values(
    settings: &Settings,
    file: &mut ConfigFile,
    before: Option<&str>,
) -> Result<()> {
    if before.is_none() || unscoped_owner(settings, file).as_deref() == before {
        return Ok(());
    }
    PER_PROVIDER_SETTINGS
        .into_iter()
        .try_for_each(|key| scope_to_provider(file, before, key))
}

fn is_in_file(origin: Option<&SettingSource>) -> bool {
    matches!(origin, Some(SettingSource::Config { .. }))
}

/// Prints a note for each API key or base URL that is set without a provider and that a change of the model affects.
fn print_owner_change(settings: &Settings, revised: &Settings, before: Option<&str>) -> Result<()> {
    let after = unscoped_owner(revised, &open_file(revised)?);
    let Some((before, after)) = before
        .zip(after.as_deref())
        .filter(|(before, after)| before != after)
    else {
        return Ok(());
    };
    for key in PER_PROVIDER_SETTINGS {
        let unscoped = |settings: &Settings| {
            settings
                .origin(&format!("{key}.*"))
                .filter(|origin| *origin != SettingSource::Default)
        };
        match (unscoped(settings), unscoped(revised)) {
            (Some(_), None) => prompt::print_stderr(&format!(
                "note: moved `{key}` to `{key}.{before}`, because it belongs to `{before}`; for `{after}`, set `{key}.{after}`\n"
            )),
            (Some(_), Some(origin))
                if is_in_file(revised.origin("model").as_ref()) && !is_in_file(Some(&origin)) =>
            {
                prompt::print_stderr(&format!(
                    "note: {origin} applied to `{before}` and now applies to `{after}`\n"
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Sets a value from text. Before it sets the value of one provider, it assigns an existing unscoped value to `owner`.
pub(super) fn set_value(
    settings: &Settings,
    file: &mut ConfigFile,
    owner: Option<&str>,
    path: &str,
    text: &str,
) -> Result<()> {
    let value = settings
        .parse_config_value(path, text)
        .map_err(|error| Error::invalid_input(error.to_string()))?;
    let keys: Vec<_> = path.split('.').collect();
    let old = Value::Object(file.parse().map_err(edit_error)?);
    let old = keys.iter().try_fold(&old, |value, key| value.get(key));
    if old
        .and_then(Value::as_object)
        .is_some_and(|map| !map.is_empty())
        && !value.is_object()
    {
        return Err(Error::invalid_input(format!(
            "cannot set `{path}`: it is a map in {}; set `{path}.<name>`, or unset `{path}` first",
            settings.config_file().display()
        )));
    }
    if let [key, _] = keys.as_slice()
        && PER_PROVIDER_SETTINGS.contains(key)
    {
        scope_to_provider(file, owner, key)?;
    }
    file.set(&keys, &value).map_err(edit_error)
}

/// Settings that have one unscoped value or one value per provider.
pub(super) const PER_PROVIDER_SETTINGS: [&str; 3] = ["api_key", "api_base", "api_key_command"];

/// Converts the unscoped value of a setting into a value of its owner.
pub(super) fn scope_to_provider(
    file: &mut ConfigFile,
    owner: Option<&str>,
    key: &str,
) -> Result<()> {
    match file.parse().map_err(edit_error)?.get(key) {
        None | Some(Value::Null | Value::Object(_) | Value::Array(_)) => Ok(()),
        // Without a known owner, the value still applies to all providers.
        Some(old) => file
            .set(&[key], &json!({owner.unwrap_or("*"): old}))
            .map_err(edit_error),
    }
}

pub(super) fn open_file(settings: &Settings) -> Result<ConfigFile> {
    ConfigFile::open(settings.config_file()).map_err(edit_error)
}

fn edit_error(error: EditError) -> Error {
    match error {
        EditError::Unwritable { .. } | EditError::Changed { .. } => {
            Error::unknown(error.to_string())
        }
        error => Error::config(error.to_string()),
    }
}

/// Returns the settings that would be effective with this file. Fails if the edit adds a problem to the file.
///
/// Problems in other sources and problems that existed before are accepted, because users can only correct problems one
/// after the other.
pub(super) fn validate_file(settings: &Settings, file: &ConfigFile) -> Result<Settings> {
    let config_error = |error: SettingsError| Error::config(error.to_string());
    let (revised, problems) = settings
        .with_config_text(file.text())
        .map_err(config_error)?;
    let (before, before_problems) = match settings.with_config_text(file.text_on_disk()) {
        Ok((before, before_problems)) => (Some(before), before_problems),
        // The previous text was not a valid YAML map.
        Err(_) => (None, Vec::new()),
    };
    let known_keys: Vec<_> = before_problems
        .iter()
        .filter_map(file_problem_key)
        .collect();
    let is_new = |error: &&SettingsError| {
        file_problem_key(error).is_some_and(|problem| !known_keys.contains(&problem))
    };
    if let Some(error) = problems.iter().find(is_new) {
        return Err(Error::config(error.to_string()));
    }
    if before.is_none_or(|before| check_settings(&before).is_ok()) {
        check_settings(&revised).map_err(Error::config)?;
    }
    Ok(revised)
}

/// Returns the setting and the value of a problem in the config file. Returns `None` for other sources. The line is not
/// part of it, because an edit moves lines.
fn file_problem_key(error: &SettingsError) -> Option<(&str, &str)> {
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

/// Checks and writes the file, and returns the settings that are effective with it.
pub(super) fn save(settings: &Settings, file: &mut ConfigFile) -> Result<Settings> {
    let revised = validate_file(settings, file)?;
    edit::remove_stale_copies(settings.home());
    file.save(revised.has_secrets_in_file())
        .map_err(edit_error)?;
    Ok(revised)
}

/// Saves the file like [`save`], and prints the problems that remain in it.
pub(super) fn save_and_report(settings: &Settings, file: &mut ConfigFile) -> Result<Settings> {
    let revised = save(settings, file)?;
    report_problems(settings, &revised, file);
    Ok(revised)
}

/// Prints the problems in the file.
pub(super) fn report_problems(settings: &Settings, revised: &Settings, file: &ConfigFile) {
    let problems = settings
        .with_config_text(file.text())
        .map(|(_, problems)| problems)
        .unwrap_or_default();
    let problems = problems
        .iter()
        .filter(|error| file_problem_key(error).is_some())
        .map(ToString::to_string);
    for problem in problems.chain(check_settings(revised).err()) {
        prompt::print_stderr(&format!(
            "note: remaining problem: {}\n",
            output::sanitize_line(&settings.redactor().redact(&problem))
        ));
    }
}
