//! `bub models`: lists available models and explains what the others need.

use std::{fmt::Write, process::ExitCode, sync::Arc};

use bub::{AppCommand, CommandContext};
use bub_kernel::{Error, Result};
use bub_model::{KeySource, LocalServer, ModelChoice, Models, ModelsReport, ProviderReport};
use bub_settings::MASK;
use clap::{Arg, ArgAction, Command};
use serde_json::{Value, json};

use super::output;

/// Report for a program without a model.
pub(super) const NO_MODEL_TEXT: &str =
    "no model configured: no API key set and no local server found";

pub(super) fn command() -> AppCommand {
    let json = Arg::new("json")
        .long("json")
        .action(ArgAction::SetTrue)
        .help("Print JSON");
    let command = Command::new("models")
        .about("List available models and show which one is used")
        .long_about(
            "List available models: the configured model, providers with an API key, and local servers. Makes no requests \
             to remote providers.",
        )
        .arg(json);
    AppCommand::new(command, run)
}

async fn run(context: CommandContext) -> Result<ExitCode> {
    let settings = &context.settings;
    let models = Models::new(
        Arc::clone(settings),
        Arc::new(super::model_client(settings)),
    );
    let report = models
        .map_err(|error| Error::config(error.to_string()))?
        .report()
        .await;
    let text = if context.matches.get_flag("json") {
        format!("{:#}\n", to_json(&report))
    } else {
        to_text(&report)
    };
    output::print(&settings.redactor().redact(&text))
}

fn to_text(report: &ModelsReport) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}", model_line(report));
    for (model, problem) in &report.fallbacks {
        let problem = problem
            .as_ref()
            .map(|problem| format!(" is unavailable: {problem}"));
        let _ = writeln!(text, "fallback: {model}{}", problem.unwrap_or_default());
    }
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    let (usable, others): (Vec<_>, Vec<_>) = report
        .providers
        .iter()
        .partition(|provider| provider.usable);
    let width = report
        .providers
        .iter()
        .map(|provider| provider.name.len())
        .max()
        .unwrap_or_default();
    if !usable.is_empty() {
        text.push_str("\navailable:\n");
    }
    for provider in usable {
        let _ = writeln!(
            text,
            "  {:width$}  {}",
            provider.name,
            describe_access(provider, &report.local_servers)
        );
    }
    text.push_str("\nunavailable:\n");
    for provider in others {
        let _ = writeln!(
            text,
            "  {:width$}  {}",
            provider.name,
            provider.todo.as_deref().unwrap_or_default()
        );
    }
    let _ = writeln!(
        text,
        "\nYou can also set keys in {} as `api_key.<provider>`, and base URLs as `api_base.<provider>`.",
        report.config_file.display()
    );
    text
}

/// Returns the line about the selected model.
fn model_line(report: &ModelsReport) -> String {
    match &report.choice {
        Err(error) => format!("no model: invalid `model`: {error}"),
        Ok(ModelChoice { model: None, .. }) => {
            format!("{NO_MODEL_TEXT}; set an API key, start a local server, or set `model`")
        }
        Ok(ModelChoice {
            model: Some(model),
            reason,
            ..
        }) => match &report.problem {
            None => format!("model: {model} ({reason})"),
            Some(problem) => format!("model: {model} ({reason}) is unavailable: {problem}"),
        },
    }
}

/// Describes how the provider is reached: its local server, its key, or neither.
fn describe_access(provider: &ProviderReport, servers: &[LocalServer]) -> String {
    let address = provider.base_url.as_deref();
    let server = servers
        .iter()
        .find(|server| Some(server.base_url.as_str()) == address);
    let server = server.map(|server| match &server.provider {
        name if *name == provider.name => {
            format!(
                "server at {}: {}",
                server.base_url,
                server.models.join(", ")
            )
        }
        other => format!("same server as `{other}`"),
    });
    let key = provider.key.as_ref().map(|source| match source {
        KeySource::Login(_) => source.to_string(),
        source => format!("key {MASK} from {source}"),
    });
    server
        .or(key)
        .unwrap_or_else(|| "no API key needed".to_owned())
}

fn to_json(report: &ModelsReport) -> Value {
    let (model, reason, problem) = match &report.choice {
        Ok(choice) => (
            choice.model.as_ref(),
            Some(choice.reason.to_string()),
            report.problem.clone(),
        ),
        Err(error) => (None, None, Some(error.to_string())),
    };
    let fallbacks = report
        .fallbacks
        .iter()
        .map(|(id, problem)| json!({"id": id, "problem": problem}));
    let servers = report.local_servers.iter().map(|server| {
        json!({"provider": server.provider, "base_url": server.base_url.as_str(), "models": server.models})
    });
    json!({
        "model": {"id": model.map(ToString::to_string), "why": reason, "problem": problem},
        "fallback_models": fallbacks.collect::<Vec<_>>(),
        "providers": report.providers.iter().map(provider_json).collect::<Vec<_>>(),
        "local_servers": servers.collect::<Vec<_>>(),
        "notes": report.notes,
    })
}

fn provider_json(provider: &ProviderReport) -> Value {
    json!({
        "name": provider.name,
        "usable": provider.usable,
        "todo": provider.todo,
        "key_from": provider.key.as_ref().map(ToString::to_string),
        "base_url": provider.base_url,
        "wire": provider.wire.name(),
        "local": provider.local,
        "default_model": provider.default_model,
    })
}
