//! `bub doctor`: checks the installation and suggests fixes. One file per check.

mod channels;
mod clock;
mod config;
mod disk;
mod home;
mod model;
mod plugins;
mod sandbox;
mod skills;
mod tapes;
mod trust;

use std::{future::ready, process::ExitCode, sync::Arc};

use bub::{CommandContext, SettingsProblems};
use bub_kernel::{BoxFuture, Framework, Result};
use bub_model::LoginFactory;
use bub_settings::Settings;
use bub_terminal::Style;
use futures_util::{FutureExt as _, future::join_all};
use serde_json::{Value, json};

use super::{
    listing::{Listing, Table, cell},
    output,
    progress::ProgressBar,
    tape::text,
};

/// Input of the checks.
struct CheckContext<'a> {
    framework: &'a Framework,
    settings: Arc<Settings>,
    logins: &'a [LoginFactory],
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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Severity {
    Ok,
    /// Works but needs attention.
    Warning,
    Error,
}

/// Check the installation and suggest fixes
///
/// Checks the home directory, settings, trust, model, channels, plugins, sandbox, skills, tapes, disk space, and clock. Makes
/// one short model request and queries each channel; changes nothing. Exits with 1 if an error is found.
#[derive(clap::Args)]
pub(super) struct DoctorArgs {
    /// Skip checks that need the network
    #[arg(long)]
    offline: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(context: CommandContext, args: DoctorArgs) -> Result<ExitCode> {
    let check_context = &CheckContext {
        framework: &context.framework,
        settings: context.settings,
        logins: &context.logins,
        problems: context.problems,
        is_offline: args.offline,
    };
    // In the order of the report.
    let checks: [(&str, BoxFuture<'_, Vec<Finding>>); 11] = [
        ("home", ready(home::check(check_context)).boxed()),
        ("config", ready(config::check(check_context)).boxed()),
        ("trust", ready(trust::check(check_context)).boxed()),
        ("model", model::check(check_context).boxed()),
        ("channels", channels::check(check_context).boxed()),
        ("plugins", ready(plugins::check(check_context)).boxed()),
        ("sandbox", ready(sandbox::check(check_context)).boxed()),
        ("skills", ready(skills::check(check_context)).boxed()),
        ("tapes", tapes::check(check_context).boxed()),
        ("disk", ready(disk::check(check_context)).boxed()),
        ("clock", ready(clock::check(check_context)).boxed()),
    ];
    let settings = &check_context.settings;
    let progress = ProgressBar::new("checking", checks.len(), settings);
    let results = checks.map(async |(name, findings)| {
        let findings = findings.await;
        progress.advance(name);
        (name, findings)
    });
    let results = join_all(results).await;
    drop(progress);
    if args.json {
        let text = format!("{:#}\n", to_json(settings, &results));
        output::print_untrusted(&settings.redactor().redact(&text))?;
    } else {
        list_findings(settings, &results).print(settings)?;
    }
    let has_errors = count_findings(&results, Severity::Error) > 0;
    Ok(ExitCode::from(u8::from(has_errors)))
}

/// Returns the number of findings of a severity.
fn count_findings(results: &[(&str, Vec<Finding>)], severity: Severity) -> usize {
    let findings = results.iter().flat_map(|(_, findings)| findings);
    let findings = findings.filter(|finding| finding.severity == severity);
    findings.count()
}

fn list_findings(settings: &Settings, results: &[(&str, Vec<Finding>)]) -> Listing {
    let mut table = Table::default();
    for (check, findings) in results {
        for finding in findings {
            let severity = finding.severity;
            table.row([
                cell(*check, Style::BOLD),
                // As wide as the longest name, so that reports look alike.
                cell(format!("{:7}", severity.name()), severity.style()),
                cell(&finding.text, Style::NONE),
            ]);
            if let Some(fix) = &finding.fix {
                let fix = cell(format!("fix: {fix}"), Style::CYAN);
                table.row([cell("", Style::NONE), cell("", Style::NONE), fix]);
            }
        }
    }
    let mut listing = Listing::from(table);
    let mut changed = Table::default();
    for [key, value, origin] in config::changed_settings(settings) {
        changed.row([
            cell(format!("  {key}"), Style::NONE),
            cell(value, Style::NONE),
            cell(origin, Style::DIM),
        ]);
    }
    if !changed.is_empty() {
        listing.blank();
        listing.row("non-default settings:");
        listing.table(changed);
    }
    listing.blank();
    let worst = results.iter().flat_map(|(_, findings)| findings);
    let worst = worst.map(|finding| finding.severity).max();
    let style = worst.unwrap_or(Severity::Ok).style();
    listing.styled_row([cell(summary(results), style)]);
    listing
}

/// Returns the last line of the report, such as `1 error, 2 warnings`.
fn summary(results: &[(&str, Vec<Finding>)]) -> String {
    let errors = match count_findings(results, Severity::Error) {
        0 => "no errors found".to_owned(),
        errors => text::format_count(errors, "error", "errors"),
    };
    match count_findings(results, Severity::Warning) {
        0 => errors,
        warnings => {
            let warnings = text::format_count(warnings, "warning", "warnings");
            format!("{errors}, {warnings}")
        }
    }
}

fn to_json(settings: &Settings, results: &[(&str, Vec<Finding>)]) -> Value {
    let mut all = Vec::new();
    for (check, findings) in results {
        all.extend(findings.iter().map(|finding| {
            json!({"check": check, "state": finding.severity.name(), "text": finding.text, "fix": finding.fix})
        }));
    }
    let settings = config::changed_settings(settings)
        .map(|[key, value, source]| json!({"key": key, "value": value, "source": source}));
    let settings: Vec<_> = settings.collect();
    let is_ok = count_findings(results, Severity::Error) == 0;
    json!({"ok": is_ok, "findings": all, "settings": settings})
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }

    fn style(self) -> Style {
        match self {
            Self::Ok => Style::GREEN,
            Self::Warning => Style::YELLOW,
            Self::Error => Style::RED,
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
            fix: Some(fix.into()),
            ..Self::ok(text)
        }
    }

    fn error(text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            ..Self::warning(text, fix)
        }
    }
}
