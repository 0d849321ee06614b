//! `bub config`: shows effective settings with their source, and changes the config file without losing comments.

mod edit;

use std::{
    borrow::Cow,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use bub::{CommandContext, check_settings};
use bub_kernel::{Error, Framework, Result};
use bub_model::{Catalog, ModelId};
use bub_settings::{ConfigFile, EditError, SettingSource, SettingValue, Settings, SettingsError};
use bub_terminal::Style;
use serde_json::{Value, json};

use super::{
    listing::{Listing, Table, cell},
    output, prompt,
};
use crate::bundled;

/// Exit code for invalid arguments or configuration.
pub(super) const EXIT_USAGE: u8 = 2;

#[derive(clap::Args)]
#[command(disable_help_subcommand = true)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(clap::Subcommand)]
enum ConfigCommand {
    /// List settings with effective value and source
    List {
        /// Only settings that differ from the default
        #[arg(long)]
        changed: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the effective value of a setting
    Get {
        /// Setting, such as `max_steps` or `api_key.NAME`
        key: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Set a value in the config file
    Set {
        /// Setting, such as `max_steps` or `api_key.NAME`
        key: String,
        /// New value, in the same syntax as the environment variable; reads stdin if omitted or `-`
        #[arg(allow_hyphen_values = true)]
        value: Option<String>,
    },
    /// Remove a value from the config file
    Unset {
        /// Setting, such as `max_steps` or `api_key.NAME`
        key: String,
    },
    /// Print the path of the config file
    Path,
    /// Open the config file in your editor and validate it
    ///
    /// The editor is $VISUAL, $EDITOR or vi. bub does not save an invalid file; you can correct it in the editor.
    Edit,
}

pub(super) async fn run(context: CommandContext, args: ConfigArgs) -> Result<ExitCode> {
    let CommandContext {
        framework,
        settings,
        ref problems,
        ..
    } = context;
    let problems = &problems.0;
    let is_query = matches!(
        args.command,
        ConfigCommand::List { .. } | ConfigCommand::Get { .. }
    );
    // With invalid settings, the printed values would not be the effective ones.
    if is_query && !problems.is_empty() {
        for problem in problems {
            let problem = problem.to_string();
            let problem = settings.redactor().redact(&problem);
            notice!("error: {}", output::sanitize_line(&problem));
        }
        return Ok(ExitCode::from(EXIT_USAGE));
    }
    match args.command {
        ConfigCommand::List { changed, json } => list_settings(&settings, changed, json),
        ConfigCommand::Get { key, json } => {
            print_setting(&settings, &current_key(&settings, &key), json)
        }
        ConfigCommand::Set { key, value } => {
            let key = current_key(&settings, &key);
            set_setting(&framework, &settings, &key, value).await
        }
        ConfigCommand::Unset { key } => unset_setting(&settings, &current_key(&settings, &key)),
        ConfigCommand::Edit => edit::edit_config(&settings).await,
        ConfigCommand::Path => output::print(&format!("{}\n", settings.config_file().display())),
    }
}

/// Returns the key of the setting on the command line. For a deprecated key, returns the current key and prints a
/// warning.
fn current_key<'a>(settings: &Settings, key: &'a str) -> Cow<'a, str> {
    let current = settings.current_path(key);
    if current != key {
        notice!("warning: `{key}` is deprecated; use `{current}`");
    }
    current
}

/// Removes the deprecated keys of a setting from the config file. Returns whether the file contained one.
fn unset_former_keys(settings: &Settings, file: &mut ConfigFile, key: &str) -> Result<bool> {
    let entry = settings.entries().find(|entry| entry.setting.key == key);
    let names = entry.map_or(&[][..], |entry| entry.setting.deprecated_names);
    names.iter().try_fold(false, |is_unset, name| {
        let path: Vec<_> = name.split('.').collect();
        Ok(file.unset(&path).map_err(edit_error)? || is_unset)
    })
}

fn list_settings(settings: &Settings, changed: bool, as_json: bool) -> Result<ExitCode> {
    let entries = settings.entries();
    let entries = entries.filter(|entry| !changed || entry.origin != SettingSource::Default);
    if as_json {
        let lines = entries.map(|entry| format!("{}\n", to_json(&entry)));
        let text = lines.collect::<String>();
        return output::print_untrusted(&settings.redactor().redact(&text));
    }
    let mut table = Table::default();
    for entry in entries {
        let is_default = entry.origin == SettingSource::Default;
        let [key, value, source] = setting_row(&entry);
        let (key_style, value_style) = if is_default {
            (Style::NONE, Style::DIM)
        } else {
            (Style::BOLD, Style::GREEN)
        };
        table.row([
            cell(key, key_style),
            cell(value, value_style),
            cell(source, Style::DIM),
        ]);
    }
    Listing::from(table).print(settings)
}

/// Returns key, value and source of a setting. Secrets are redacted.
pub(super) fn setting_row(entry: &SettingValue<'_>) -> [String; 3] {
    [
        entry.setting.key.to_string(),
        format_value(&entry.display_value),
        entry.origin.to_string(),
    ]
}

fn to_json(entry: &SettingValue<'_>) -> Value {
    json!({
        "key": entry.setting.key,
        "value": entry.display_value,
        "default": entry.default,
        "source": entry.origin.to_string(),
        "variable": entry.setting.variable(),
        "expected": entry.setting.describe_expected(),
        "help": entry.setting.help,
    })
}

fn print_setting(settings: &Settings, key: &str, as_json: bool) -> Result<ExitCode> {
    let value = settings.get_value(key);
    let value = value.map_err(|error| Error::invalid_input(error.to_string()))?;
    let value = value.to_display_value();
    let text = if as_json {
        let origin = settings.origin(key).map(|origin| origin.to_string());
        json!({"key": key, "value": value, "source": origin}).to_string()
    } else {
        format_value(&value)
    };
    output::print_untrusted(&settings.redactor().redact(&format!("{text}\n")))
}

/// Formats a value as users write it.
fn format_value(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            let texts: Vec<_> = items.iter().filter_map(Value::as_str).collect();
            texts.join(", ")
        }
        value => value.to_string(),
    }
}

async fn set_setting(
    framework: &Framework,
    settings: &Arc<Settings>,
    key: &str,
    value: Option<String>,
) -> Result<ExitCode> {
    let text = match value.filter(|value| value != "-") {
        Some(text) => text,
        None if prompt::has_terminal() => prompt::prompt_secret(&format!("value of {key}")).await?,
        None => prompt::read_stdin()?,
    };
    let revised = edit_file(settings, key, |file| {
        let owner = model_provider(settings, file);
        set_value(settings, file, owner.as_deref(), key, &text)?;
        check_channel(framework, settings, file, key)?;
        unset_former_keys(settings, file, key).map(drop)
    })?;
    warn_overridden(&revised.settings, key);
    revised.print_owner_change(settings)?;
    let file = settings.config_file().display();
    output::print(&format!("set {key} in {file}\n"))
}

/// Fails if the edit adds a value with which a channel does not start. A value that was wrong before does not prevent
/// the correction of another one.
fn check_channel(
    framework: &Framework,
    settings: &Arc<Settings>,
    file: &ConfigFile,
    key: &str,
) -> Result<()> {
    let Some((channel, _)) = key.split_once('.') else {
        return Ok(());
    };
    let validate = |settings| bundled::validate_channel(framework, settings, channel);
    match validate(Arc::clone(settings)) {
        Ok(()) => validate(Arc::new(validate_file(settings, file)?)),
        Err(_) => Ok(()),
    }
}

/// Prints a note if another source overrides a setting in the config file.
pub(super) fn warn_overridden(revised: &Settings, key: &str) {
    let origin = revised.origin(key);
    if let Some(origin) = origin.filter(|origin| !is_in_file(Some(origin))) {
        notice!("note: {origin} overrides `{key}` in the config file");
    }
}

fn unset_setting(settings: &Settings, key: &str) -> Result<ExitCode> {
    let file = settings.config_file().display();
    let revised = edit_file(settings, key, |config| {
        let path: Vec<_> = key.split('.').collect();
        let is_unset = config.unset(&path).map_err(edit_error)?;
        if unset_former_keys(settings, config, key)? || is_unset {
            return Ok(());
        }
        let problem = format!("{file} does not set `{key}`");
        Err(Error::invalid_input(match settings.get_value(key) {
            Ok(_) => problem,
            Err(error) => format!("{problem}; {error}"),
        }))
    })?;
    let origin = revised.settings.origin(key);
    if let Some(origin) = origin.filter(|origin| *origin != SettingSource::Default) {
        notice!("note: {origin} still sets `{key}`");
    }
    revised.print_owner_change(settings)?;
    output::print(&format!("unset {key} in {file}\n"))
}

/// How long a change is retried while other processes change the config file.
const WRITE_RETRY_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings after an edit of the config file.
struct RevisedSettings {
    settings: Settings,
    /// Provider before the edit, if the edit can change the provider. API keys and base URLs without a provider belong
    /// to it.
    former_owner: Option<String>,
}

/// Edits the setting `key` and saves the config file. Retries if another process wrote the file in the meantime.
///
/// If the edit changes the provider, API keys and base URLs that are set without a provider stay with the previous one.
fn edit_file(
    settings: &Settings,
    key: &str,
    edit: impl Fn(&mut ConfigFile) -> Result<()>,
) -> Result<RevisedSettings> {
    let end = Instant::now() + WRITE_RETRY_TIMEOUT;
    let owner = unscoped_owner(settings, &open_file(settings)?);
    let former_owner = owner.filter(|_| key == "model");
    loop {
        let mut file = open_file(settings)?;
        edit(&mut file)?;
        if let Some(owner) = &former_owner
            && unscoped_owner(settings, &file).as_ref() != Some(owner)
        {
            scope_all_to_provider(&mut file, owner)?;
        }
        let saved = save_and_report(settings, &mut file);
        let has_changed = || open_file(settings).is_ok_and(|now| now.text() != file.text_on_disk());
        if saved.is_ok() || Instant::now() > end || !has_changed() {
            return saved.map(|settings| RevisedSettings {
                settings,
                former_owner,
            });
        }
    }
}

/// Returns the provider of the configured model. API keys and base URLs that are set without a provider belong to it.
pub(super) fn model_provider(settings: &Settings, file: &ConfigFile) -> Option<String> {
    let in_file = || Some(file.parse().ok()?.get("model")?.as_str()?.to_owned());
    let elsewhere = || {
        let model = settings.text_at("model");
        model.filter(|_| !is_in_file(settings.origin("model").as_ref()))
    };
    let model: ModelId = in_file().or_else(elsewhere)?.parse().ok()?;
    Some(model.provider().to_owned())
}

/// Returns the provider that uses the API keys and base URLs that the file sets without a provider.
///
/// This is the provider of the model. Without a model, it is the provider whose key prefix matches the key, or else the
/// first provider of the catalog.
pub(super) fn unscoped_owner(settings: &Settings, file: &ConfigFile) -> Option<String> {
    let owner = model_provider(settings, file)
        .or_else(|| super::onboard::model::unscoped_key_owner(settings, file))?;
    let canonical_name = || Some(Catalog::new(settings).ok()?.get(&owner)?.name.clone());
    Some(canonical_name().unwrap_or(owner))
}

fn is_in_file(origin: Option<&SettingSource>) -> bool {
    matches!(origin, Some(SettingSource::Config { .. }))
}

impl RevisedSettings {
    /// Prints notes if the model now has another provider. An API key or base URL that is set without a provider either
    /// stays with the former provider, or applies to the new one.
    fn print_owner_change(&self, settings: &Settings) -> Result<()> {
        let revised = &self.settings;
        let Some(before) = &self.former_owner else {
            return Ok(());
        };
        let after = unscoped_owner(revised, &open_file(revised)?);
        let Some(after) = after.filter(|after| after != before) else {
            return Ok(());
        };
        for key in PER_PROVIDER_SETTINGS {
            let unscoped = |settings: &Settings| {
                let origin = settings.origin(&format!("{key}.*"));
                origin.filter(|origin| *origin != SettingSource::Default)
            };
            match (unscoped(settings), unscoped(revised)) {
                (Some(_), None) => notice!(
                    "note: moved `{key}` to `{key}.{before}`, because it belongs to `{before}`; for `{after}`, set `{key}.{after}`"
                ),
                (Some(_), Some(origin))
                    if is_in_file(revised.origin("model").as_ref())
                        && !is_in_file(Some(&origin)) =>
                {
                    notice!("note: {origin} applied to `{before}` and now applies to `{after}`");
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Sets the value at `path` in the config file from text.
///
/// If `path` names a provider, such as `api_key.NAME`, an existing value without a provider is first assigned to the
/// provider `owner`.
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
    let old = old.and_then(Value::as_object);
    if old.is_some_and(|map| !map.is_empty()) && !value.is_object() {
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

/// Settings with one value per provider (`api_key.NAME`) or one value that is set without a provider (`api_key`).
pub(super) const PER_PROVIDER_SETTINGS: [&str; 3] = ["api_key", "api_base", "api_key_command"];

/// Returns whether a value in the config file is set without a provider.
pub(super) fn is_unscoped(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Object(_) | Value::Array(_))
}

/// Assigns all values that are set without a provider to the provider `owner`.
pub(super) fn scope_all_to_provider(file: &mut ConfigFile, owner: &str) -> Result<()> {
    let mut keys = PER_PROVIDER_SETTINGS.into_iter();
    keys.try_for_each(|key| scope_to_provider(file, Some(owner), key))
}

/// Assigns a value that is set without a provider to the provider `owner`: `api_key: X` becomes `api_key: {owner: X}`.
fn scope_to_provider(file: &mut ConfigFile, owner: Option<&str>, key: &str) -> Result<()> {
    let map = file.parse().map_err(edit_error)?;
    match map.get(key).filter(|value| is_unscoped(value)) {
        // If `owner` is unknown, the value still applies to all providers.
        Some(old) => file
            .set(&[key], &json!({owner.unwrap_or("*"): old}))
            .map_err(edit_error),
        None => Ok(()),
    }
}

pub(super) fn open_file(settings: &Settings) -> Result<ConfigFile> {
    ConfigFile::open(settings.config_file()).map_err(edit_error)
}

fn edit_error(error: EditError) -> Error {
    match error {
        EditError::Changed { .. } => Error::unknown(error.to_string()),
        error => Error::config(error.to_string()),
    }
}

/// Returns the settings that would be effective with the edited file. Fails if the edit adds a problem to the file.
///
/// Problems in other sources and problems that existed before are accepted, because users can only correct problems one
/// after the other.
pub(super) fn validate_file(settings: &Settings, file: &ConfigFile) -> Result<Settings> {
    let (revised, problems) = settings
        .with_config_text(file.text())
        .map_err(|error| Error::config(error.to_string()))?;
    // If the previous text was not a valid YAML map, all problems are new.
    let before = settings.with_config_text(file.text_on_disk()).ok();
    let before_problems = before.as_ref().map_or(&[][..], |(_, problems)| problems);
    let known_keys: Vec<_> = before_problems
        .iter()
        .filter_map(identify_file_problem)
        .collect();
    let is_new = |error: &&SettingsError| {
        identify_file_problem(error).is_some_and(|problem| !known_keys.contains(&problem))
    };
    if let Some(error) = problems.iter().find(is_new) {
        return Err(Error::config(error.to_string()));
    }
    if before.is_none_or(|(before, _)| check_settings(&before).is_ok()) {
        check_settings(&revised).map_err(Error::config)?;
    }
    Ok(revised)
}

/// Returns the setting and the invalid value of a problem in the config file, or `None` if the problem is in another
/// source. The pair identifies the problem also after an edit that moves lines.
fn identify_file_problem(error: &SettingsError) -> Option<(&str, &str)> {
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

/// Checks and writes the config file, and returns the settings that are effective with it.
pub(super) fn save(settings: &Settings, file: &mut ConfigFile) -> Result<Settings> {
    let revised = validate_file(settings, file)?;
    edit::remove_stale_copies(settings.home());
    file.save().map_err(edit_error)?;
    Ok(revised)
}

/// Saves the config file like [`save`], and prints the problems that remain in it.
pub(super) fn save_and_report(settings: &Settings, file: &mut ConfigFile) -> Result<Settings> {
    let revised = save(settings, file)?;
    report_problems(settings, &revised, file);
    Ok(revised)
}

/// Prints the problems in the config file.
pub(super) fn report_problems(settings: &Settings, revised: &Settings, file: &ConfigFile) {
    let parsed = settings.with_config_text(file.text());
    let problems = parsed.map_or_else(|_| Vec::new(), |(_, problems)| problems);
    let in_file = problems
        .iter()
        .filter(|error| identify_file_problem(error).is_some());
    let in_file = in_file.map(ToString::to_string);
    for problem in in_file.chain(check_settings(revised).err()) {
        let problem = output::sanitize_line(&settings.redactor().redact(&problem));
        notice!("note: remaining problem: {problem}");
    }
}
