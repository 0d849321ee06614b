//! Checks the sources of settings and lists the settings that differ from the default.

use std::{fs, os::unix::fs::PermissionsExt as _};

use bub::{check_settings, logging};
use bub_agent::policy::Policy;
use bub_settings::{SettingSource, Settings, SettingsError, SettingsWarning};

use super::{
    super::{config::setting_row, policy},
    CheckContext, Finding,
};

const DOTENV_FIX: &str = "harmless if the file is not for bub: to avoid this warning, move it or start bub in another \
                     directory; otherwise make it a text file of `NAME=value` lines";
const EDIT_FIX: &str = "correct it in the config file with `bub config edit`, or at its source";

pub(super) fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let settings = &check_context.settings;
    let problems = check_context.problems.0.iter();
    let mut findings: Vec<_> = problems.map(settings_finding).collect();
    let invalid = check_settings(settings).err();
    findings.extend(invalid.map(|problem| Finding::error(problem, EDIT_FIX)));
    if let Some(problem) = logging::log_file_problem(settings) {
        let fix = "set `log.file` to a separate file, or run `bub config unset log.file`";
        findings.push(Finding::error(problem, fix));
    }
    for warning in settings.warnings() {
        let fix = match &warning {
            SettingsWarning::DotEnvFile { .. } => DOTENV_FIX.to_owned(),
            SettingsWarning::Unknown { origin, .. }
            | SettingsWarning::Duplicate { origin, .. }
            | SettingsWarning::Deprecated { origin, .. }
            | SettingsWarning::NotInFile { origin, .. }
            | SettingsWarning::DotEnvSyntax { origin, .. } => source_fix(origin),
            _ => EDIT_FIX.to_owned(),
        };
        findings.push(Finding::warning(warning.to_string(), fix));
    }
    let policy = Policy::new(settings);
    for (rule, reason) in policy::unmatchable_rules(check_context.framework, &policy) {
        let (number, origin) = (rule.number, &rule.origin);
        findings.push(Finding::warning(
            format!("policy rule {number} never matches: {reason} ({origin})"),
            "correct the rule; `bub policy explain` shows the decision for a call",
        ));
    }
    for (rule, risk) in policy::dangerous_rules(&policy) {
        let (number, origin) = (rule.number, &rule.origin);
        findings.push(Finding::warning(
            format!("policy rule {number} is dangerous: it {risk} ({origin})"),
            "add `arguments` or `roles` to the rule; `bub policy explain` shows the decision for a call",
        ));
    }
    let file = settings.config_file();
    let mode = fs::metadata(file).map_or(0, |metadata| metadata.permissions().mode() & 0o777);
    if mode & 0o077 != 0 && settings.has_secrets_in_file() {
        let file = file.display();
        findings.push(Finding::warning(
            format!("{file} contains secrets and is readable by other users (mode {mode:o})"),
            format!("chmod 600 {file}"),
        ));
    }
    if findings.is_empty() {
        let absent = if file.exists() {
            ""
        } else {
            ": not present (optional)"
        };
        findings.push(Finding::ok(format!("{}{absent}", file.display())));
    }
    findings
}

/// Returns the finding for an error of the settings. Permissions are not corrected in the config file.
fn settings_finding(error: &SettingsError) -> Finding {
    match error {
        SettingsError::Unsafe { path, problem, fix } => {
            let text = format!("{}: not safe to use: {problem}", path.display());
            Finding::error(text, fix)
        }
        SettingsError::Unreadable { file, .. } => {
            let fix = format!("make {} a file that your user can read", file.display());
            Finding::error(error.to_string(), fix)
        }
        // `bub config set` refuses a file that it cannot parse.
        SettingsError::Syntax { .. } | SettingsError::NotAMap { .. } => {
            Finding::error(error.to_string(), "correct the line with `bub config edit`")
        }
        SettingsError::NotText { location } => {
            Finding::error(error.to_string(), format!("convert {location} to UTF-8"))
        }
        SettingsError::Invalid {
            origin: SettingSource::Config { .. },
            key,
            ..
        } => {
            let fix = format!("run `bub config set {key} VALUE` or `bub config unset {key}`");
            Finding::error(error.to_string(), fix)
        }
        SettingsError::Invalid { origin, .. } | SettingsError::Unknown { origin, .. } => {
            Finding::error(error.to_string(), source_fix(origin))
        }
        _ => Finding::error(error.to_string(), EDIT_FIX),
    }
}

/// Returns where to correct a value.
fn source_fix(origin: &SettingSource) -> String {
    match origin {
        SettingSource::Env(name) => format!("correct or unset the variable {name}"),
        SettingSource::DotEnv { .. } => format!("correct {origin}"),
        SettingSource::Config { .. } => "correct the line with `bub config edit`".to_owned(),
        _ => EDIT_FIX.to_owned(),
    }
}

/// Returns key, value and source of each setting that differs from the default. Secrets are redacted.
pub(super) fn changed_settings(settings: &Settings) -> impl Iterator<Item = [String; 3]> {
    let entries = settings.entries();
    let changed = entries.filter(|entry| entry.origin != SettingSource::Default);
    changed.map(|entry| setting_row(&entry))
}
