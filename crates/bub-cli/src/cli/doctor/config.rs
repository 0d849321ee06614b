//! The settings: what is wrong with their sources, and which are in force.

use bub::{check_settings, logging};
use bub_agent::policy::Policy;
use bub_settings::{Origin, Settings, Warning};

use super::{
    super::{config::plain, policy},
    Finding, Patient,
};

const ASIDE: &str = "harmless if it is not meant for bub: move it away, or choose another directory with `-w DIR`, and nobody \
                     mentions it; else make it a text of `NAME=value` lines";
const EDIT: &str = "correct it there; for the config file `bub config set` or `bub config edit`";

pub(super) fn check(patient: &Patient<'_>) -> Vec<Finding> {
    let settings = &patient.settings;
    let problems = patient.problems.0.iter();
    let mut findings: Vec<_> = problems
        .map(|problem| Finding::broken(problem.to_string(), EDIT))
        .collect();
    findings.extend(
        check_settings(settings)
            .err()
            .map(|problem| Finding::broken(problem, EDIT)),
    );
    findings.extend(logging::file_problem(settings).map(|problem| {
        Finding::broken(
            problem,
            "set `log.file` to a file of its own, or `bub config unset log.file`",
        )
    }));
    findings.extend(settings.warnings().iter().map(|warning| {
        let fix = if matches!(warning, Warning::DotEnvFile { .. }) {
            ASIDE
        } else {
            EDIT
        };
        Finding::doubtful(warning.to_string(), fix)
    }));
    let policy = Policy::new(settings);
    findings.extend(
        policy::idle(patient.framework, &policy).map(|(rule, reason)| {
            let text = format!(
                "rule {} of the policy never fits: {reason} ({})",
                rule.number, rule.origin
            );
            Finding::doubtful(
                text,
                "correct it there; `bub policy explain` shows what happens to a call",
            )
        }),
    );
    if findings.is_empty() {
        let file = settings.config_file();
        let absent = if file.exists() {
            ""
        } else {
            " (does not exist; nothing needs it)"
        };
        findings.push(Finding::fine(format!("{}{absent}", file.display())));
    }
    findings
}

/// Key, value and source of every setting that is not at its default; secrets are masked.
pub(super) fn changed(settings: &Settings) -> impl Iterator<Item = [String; 3]> {
    settings
        .entries()
        .filter(|entry| entry.origin != Origin::Default)
        .map(|entry| {
            [
                entry.setting.key().to_owned(),
                plain(&entry.shown),
                entry.origin.to_string(),
            ]
        })
}
