//! `bub models`: what can be used now, why, and what to do about the rest.

use std::{fmt::Write, process::ExitCode, sync::Arc};

use bub::{AppCommand, CommandContext};
use bub_kernel::{Error, Result};
use bub_model::{KeySource, LocalServer, ModelChoice, Models, ModelsReport, ProviderReport};
use bub_settings::MASK;
use clap::{Arg, ArgAction, Command};
use serde_json::{Value, json};

use super::output;

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
    let models = Models::new(Arc::clone(settings), Arc::new(super::client(settings)));
    let report = models
        .map_err(|error| Error::config(error.to_string()))?
        .report()
        .await;
    let text = if context.matches.get_flag("json") {
        format!("{:#}\n", as_json(&report))
    } else {
        as_text(&report)
    };
    output::print(&settings.redactor().redact(&text))
}

fn as_text(report: &ModelsReport) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "model: {}", model_line(report));
    for (model, problem) in &report.fallbacks {
        let problem = problem
            .as_ref()
            .map(|problem| format!(" cannot be used: {problem}"));
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
        text.push_str("\nusable now:\n");
    }
    for provider in usable {
        let _ = writeln!(
            text,
            "  {:width$}  {}",
            provider.name,
            how(provider, &report.local_servers)
        );
    }
    text.push_str("\nnot usable:\n");
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
        "\nA key can also stand in {} as `api_key.<provider>`, an address as `api_base.<provider>`.",
        report.config_file.display()
    );
    text
}

fn model_line(report: &ModelsReport) -> String {
    match &report.choice {
        Err(error) => format!("none, because `model` is wrong: {error}"),
        Ok(ModelChoice {
            model: None,
            reason,
            ..
        }) => {
            format!("none ({reason}); set a key, start a server or set `model`")
        }
        Ok(ModelChoice {
            model: Some(model),
            reason,
            ..
        }) => match &report.problem {
            None => format!("{model} ({reason})"),
            Some(problem) => format!("{model} ({reason}) cannot be used: {problem}"),
        },
    }
}

fn how(provider: &ProviderReport, servers: &[LocalServer]) -> String {
    let address = provider.base_url.as_deref();
    let server = servers
        .iter()
        .find(|server| Some(server.base_url.as_str()) == address);
    let server = server.map(|server| match &server.provider {
        own if *own == provider.name => {
            format!(
                "server at {}: {}",
                server.base_url,
                server.models.join(", ")
            )
        }
        other => format!("the same server as `{other}`"),
    });
    let key = provider.key.as_ref().map(|source| match source {
        KeySource::Login(_) => source.to_string(),
        source => format!("key {MASK} from {source}"),
    });
    server.or(key).unwrap_or_else(|| "no key needed".to_owned())
}

fn as_json(report: &ModelsReport) -> Value {
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
