//! `bub doctor`: checks the installation and suggests fixes. One file per check.

mod channels;
mod clock;
mod config;
mod disk;
mod home;
mod model;
mod plugins;
mod skills;
mod tapes;

use std::{fmt::Write as _, process::ExitCode, sync::Arc};

use bub::{AppCommand, CommandContext, SettingsProblems};
use bub_kernel::{BoxFuture, Framework, Result};
use bub_settings::Settings;
use clap::{Arg, ArgAction, Command};
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{output, tape::text};

/// Input of the checks.
struct CheckContext<'a> {
    framework: &'a Framework,
    settings: Arc<Settings>,
    problems: Arc<SettingsProblems>,
    /// Whether to skip checks that need the network.
    is_offline: bool,
}

/// One result of a check.
struct Finding {
    severity: Severity,
    text: String,
    /// Suggested fix.
    fix: Option<String>,
}

/// Severity of a finding. Only errors change the exit code.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Severity {
    Ok,
    /// Works but needs attention.
    Warning,
    Error,
}

type Check = for<'a> fn(&'a CheckContext<'a>) -> BoxFuture<'a, Vec<Finding>>;

/// All checks, in the order of the report.
const CHECKS: [(&str, Check); 9] = [
    ("home", |check_context| {
        ready_findings(home::check(check_context))
    }),
    ("config", |check_context| {
        ready_findings(config::check(check_context))
    }),
    ("model", |check_context| {
        Box::pin(model::check(check_context))
    }),
    ("channels", |check_context| {
        Box::pin(channels::check(check_context))
    }),
    ("plugins", |check_context| {
        ready_findings(plugins::check(check_context))
    }),
    ("skills", |check_context| {
        ready_findings(skills::check(check_context))
    }),
    ("tapes", |check_context| {
        Box::pin(tapes::check(check_context))
    }),
    ("disk", |check_context| {
        ready_findings(disk::check(check_context))
    }),
    ("clock", |check_context| {
        ready_findings(clock::check(check_context))
    }),
];

/// Wraps the findings of a synchronous check.
fn ready_findings<'a>(findings: Vec<Finding>) -> BoxFuture<'a, Vec<Finding>> {
    Box::pin(std::future::ready(findings))
}

pub(super) fn command() -> AppCommand {
    let flag = |name: &'static str, help| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    let command = Command::new("doctor")
        .about("Check the installation and suggest fixes")
        .long_about(
            "Check the home directory, settings, model, channels, plugins, skills, tapes, disk space, and clock. Makes one \
             short model request and queries each channel; changes nothing. Exits with 1 if an error is found.",
        )
        .arg(flag("offline", "Skip checks that need the network"))
        .arg(flag("json", "Print JSON"));
    AppCommand::new(command, run).allow_invalid_settings()
}

async fn run(context: CommandContext) -> Result<ExitCode> {
    let is_offline = context.matches.get_flag("offline");
    let check_context = CheckContext {
        framework: &context.framework,
        settings: context.settings,
        problems: context.problems,
        is_offline,
    };
    let results = join_all(CHECKS.iter().map(|(_, check)| check(&check_context))).await;
    let results: Vec<_> = CHECKS.iter().map(|(name, _)| *name).zip(results).collect();
    let text = if context.matches.get_flag("json") {
        format!("{:#}\n", to_json(&check_context.settings, &results))
    } else {
        to_text(&check_context.settings, &results)
    };
    output::print_untrusted(&check_context.settings.redactor().redact(&text))?;
    Ok(if count_findings(&results, Severity::Error) == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Returns the number of findings of a severity.
fn count_findings(results: &[(&str, Vec<Finding>)], severity: Severity) -> usize {
    let findings = results.iter().flat_map(|(_, findings)| findings);
    findings
        .filter(|finding| finding.severity == severity)
        .count()
}

fn to_text(settings: &Settings, results: &[(&str, Vec<Finding>)]) -> String {
    let mut out = String::new();
    for (check, findings) in results {
        for finding in findings {
            let _ = writeln!(
                out,
                "{check:9} {:9} {}",
                finding.severity.name(),
                text::sanitize_line(&finding.text)
            );
            if let Some(fix) = &finding.fix {
                let _ = writeln!(out, "{:19} fix: {}", "", text::sanitize_line(fix));
            }
        }
    }
    let changed: Vec<_> = config::changed_settings(settings).collect();
    if !changed.is_empty() {
        out.push_str("\nnon-default settings:\n");
        let rows = changed
            .into_iter()
            .map(|[key, value, origin]| [format!("  {key}"), text::sanitize_line(&value), origin]);
        out.push_str(&text::format_columns(&rows.collect::<Vec<_>>()));
    }
    let _ = writeln!(out, "\n{}", summary(results));
    out
}

/// Returns the last line of the report, such as `1 error, 2 warnings`.
fn summary(results: &[(&str, Vec<Finding>)]) -> String {
    let errors = match count_findings(results, Severity::Error) {
        0 => "no errors found".to_owned(),
        errors => text::format_count(errors as u64, "error", "errors"),
    };
    match count_findings(results, Severity::Warning) {
        0 => errors,
        warnings => {
            let warnings = text::format_count(warnings as u64, "warning", "warnings");
            format!("{errors}, {warnings}")
        }
    }
}

fn to_json(settings: &Settings, results: &[(&str, Vec<Finding>)]) -> Value {
    let findings = results
        .iter()
        .flat_map(|(check, findings)| findings.iter().map(move |finding| (check, finding)));
    let findings: Vec<_> = findings
        .map(|(check, finding)| {
            json!({"check": check, "state": finding.severity.name(), "text": finding.text, "fix": finding.fix})
        })
        .collect();
    let settings = config::changed_settings(settings);
    let settings: Vec<_> = settings
        .map(|[key, value, source]| json!({"key": key, "value": value, "source": source}))
        .collect();
    let is_ok = count_findings(results, Severity::Error) == 0;
    json!({"ok": is_ok, "findings": findings, "settings": settings})
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl Finding {
    fn ok(text: impl Into<String>) -> Self {
        Self {
            severity: Severity::Ok,
            text: text.into(),
            fix: None,
        }
    }

    fn warning(text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            text: text.into(),
            fix: Some(fix.into()),
        }
    }

    fn error(text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            text: text.into(),
            fix: Some(fix.into()),
        }
    }
}
