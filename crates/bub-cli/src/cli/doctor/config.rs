//! Checks the sources of settings and lists the settings that differ from the default.

use bub::{check_settings, logging};
use bub_agent::policy::Policy;
use bub_settings::{SettingSource, Settings, SettingsWarning};

use super::{
    super::{config::format_value, policy},
    CheckContext, Finding,
};

const DOTENV_FIX: &str = "harmless if the file is not for bub: to avoid this warning, move it or choose another directory with \
                     `-w DIR`; otherwise make it a text file of `NAME=value` lines";
const EDIT_FIX: &str =
    "correct it at its source; for the config file, use `bub config set` or `bub config edit`";

pub(super) fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let settings = &check_context.settings;
    let problems = check_context.problems.0.iter();
    let mut findings: Vec<_> = problems
        .map(|problem| Finding::error(problem.to_string(), EDIT_FIX))
        .collect();
    findings.extend(
        check_settings(settings)
            .err()
            .map(|problem| Finding::error(problem, EDIT_FIX)),
    );
    findings.extend(logging::log_file_problem(settings).map(|problem| {
        Finding::error(
            problem,
            "set `log.file` to a separate file, or run `bub config unset log.file`",
        )
    }));
    findings.extend(settings.warnings().iter().map(|warning| {
        let fix = if matches!(warning, SettingsWarning::DotEnvFile { .. }) {
            DOTENV_FIX
        } else {
            EDIT_FIX
        };
        Finding::warning(warning.to_string(), fix)
    }));
    let policy = Policy::new(settings);
    findings.extend(
        policy::unmatchable_rules(check_context.framework, &policy).map(|(rule, reason)| {
            let text = format!(
                "policy rule {} never matches: {reason} ({})",
                rule.number, rule.origin
            );
            Finding::warning(
                text,
                "correct the rule; `bub policy explain` shows the decision for a call",
            )
        }),
    );
    if findings.is_empty() {
        let file = settings.config_file();
        let absent = if file.exists() {
            ""
        } else {
            ": not present (optional)"
        };
        findings.push(Finding::ok(format!("{}{absent}", file.display())));
    }
    findings
}

/// Returns key, value and source of each setting that differs from the default. Secrets are redacted.
pub(super) fn changed_settings(settings: &Settings) -> impl Iterator<Item = [String; 3]> {
    settings
        .entries()
        .filter(|entry| entry.origin != SettingSource::Default)
        .map(|entry| {
            [
                entry.setting.key().to_owned(),
                format_value(&entry.display_value),
                entry.origin.to_string(),
            ]
        })
}
