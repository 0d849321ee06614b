//! `bub doctor`: what works, what does not, and what to do about it. One file for each check.

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

/// What checks look at.
struct CheckContext<'a> {
    framework: &'a Framework,
    settings: Arc<Settings>,
    problems: Arc<SettingsProblems>,
    /// Nobody outside of this computer is asked.
    is_offline: bool,
}

/// One thing that was found.
struct Finding {
    state: Severity,
    text: String,
    /// What to do about it.
    fix: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Severity {
    Ok,
    /// Works, but not as it should.
    Warning,
    Error,
}

type Check = for<'a> fn(&'a CheckContext<'a>) -> BoxFuture<'a, Vec<Finding>>;

/// All checks, in the order of the report.
const CHECKS: [(&str, Check); 9] = [
    ("home", |check_context| at_once(home::check(check_context))),
    ("config", |check_context| {
        at_once(config::check(check_context))
    }),
    ("model", |check_context| {
        Box::pin(model::check(check_context))
    }),
    ("channels", |check_context| {
        Box::pin(channels::check(check_context))
    }),
    ("plugins", |check_context| {
        at_once(plugins::check(check_context))
    }),
    ("skills", |check_context| {
        at_once(skills::check(check_context))
    }),
    ("tapes", |check_context| {
        Box::pin(tapes::check(check_context))
    }),
    ("disk", |check_context| at_once(disk::check(check_context))),
    ("clock", |check_context| {
        at_once(clock::check(check_context))
    }),
];

fn at_once<'a>(findings: Vec<Finding>) -> BoxFuture<'a, Vec<Finding>> {
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
    AppCommand::new(command, run).runs_with_invalid_settings()
}

async fn run(context: CommandContext) -> Result<ExitCode> {
    let is_offline = context.matches.get_flag("offline");
    let check_context = CheckContext {
        framework: &context.framework,
        settings: context.settings,
        problems: context.problems,
        is_offline,
    };
    let found = join_all(CHECKS.iter().map(|(_, check)| check(&check_context))).await;
    let found: Vec<_> = CHECKS.iter().map(|(name, _)| *name).zip(found).collect();
    let broken = found
        .iter()
        .flat_map(|(_, findings)| findings)
        .filter(|finding| finding.state == Severity::Error);
    let broken = broken.count();
    let text = if context.matches.get_flag("json") {
        format!("{:#}\n", as_json(&check_context.settings, &found))
    } else {
        as_text(&check_context.settings, &found, broken)
    };
    output::print_text(&check_context.settings.redactor().redact(&text))?;
    Ok(if broken == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn as_text(settings: &Settings, found: &[(&str, Vec<Finding>)], broken: usize) -> String {
    let mut out = String::new();
    for (check, findings) in found {
        for finding in findings {
            let _ = writeln!(
                out,
                "{check:9} {:9} {}",
                finding.state.name(),
                text::line(&finding.text)
            );
            if let Some(fix) = &finding.fix {
                let _ = writeln!(out, "{:19} fix: {}", "", text::line(fix));
            }
        }
    }
    let changed: Vec<_> = config::changed(settings).collect();
    if !changed.is_empty() {
        out.push_str("\nsettings that are not at their default:\n");
        let rows = changed
            .into_iter()
            .map(|[key, value, origin]| [format!("  {key}"), text::line(&value), origin]);
        out.push_str(&text::columns(&rows.collect::<Vec<_>>()));
    }
    let _ = match broken {
        0 => writeln!(out, "\nnothing is broken"),
        1 => writeln!(out, "\n1 thing is broken"),
        count => writeln!(out, "\n{count} things are broken"),
    };
    out
}

fn as_json(settings: &Settings, found: &[(&str, Vec<Finding>)]) -> Value {
    let findings = found
        .iter()
        .flat_map(|(check, findings)| findings.iter().map(move |finding| (check, finding)));
    let findings: Vec<_> = findings
        .map(|(check, finding)| {
            json!({"check": check, "state": finding.state.name(), "text": finding.text, "fix": finding.fix})
        })
        .collect();
    let settings = config::changed(settings);
    let settings: Vec<_> = settings
        .map(|[key, value, source]| json!({"key": key, "value": value, "source": source}))
        .collect();
    let is_ok = found.iter().all(|(_, findings)| {
        findings
            .iter()
            .all(|finding| finding.state != Severity::Error)
    });
    json!({"ok": is_ok, "findings": findings, "settings": settings})
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "doubtful",
            Self::Error => "broken",
        }
    }
}

impl Finding {
    fn ok(text: impl Into<String>) -> Self {
        Self {
            state: Severity::Ok,
            text: text.into(),
            fix: None,
        }
    }

    fn warning(text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            state: Severity::Warning,
            text: text.into(),
            fix: Some(fix.into()),
        }
    }

    fn error(text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            state: Severity::Error,
            text: text.into(),
            fix: Some(fix.into()),
        }
    }
}
