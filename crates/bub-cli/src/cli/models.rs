//! `bub models`: lists available models and explains what the others need.

use std::process::ExitCode;

use bub::CommandContext;
use bub_kernel::Result;
use bub_model::{ChoiceReason, KeySource, ModelChoice, ModelsReport, ProviderReport};
use bub_settings::MASK;
use bub_terminal::Style;
use serde_json::{Value, json};

use super::{
    listing::{Listing, Table, cell},
    output,
};

/// Text that commands print if no model is configured.
pub(super) const NO_MODEL_TEXT: &str =
    "no model configured: no API key set and no local server found";

/// List available models and show which one is used
///
/// Lists the configured model, providers with an API key, and local servers. With `--all`, also lists the other providers.
/// Makes no requests to remote providers.
#[derive(clap::Args)]
pub(super) struct ModelsArgs {
    /// Also list the providers without access
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(context: CommandContext, args: ModelsArgs) -> Result<ExitCode> {
    let settings = &context.settings;
    let report = super::models(settings, &context.logins)?.report().await;
    if args.json {
        let text = format!("{:#}\n", to_json(&report));
        return output::print(&settings.redactor().redact(&text));
    }
    list_models(&report, args.all).print(settings)
}

fn list_models(report: &ModelsReport, shows_all: bool) -> Listing {
    let mut listing = Listing::default();
    let has_model = report
        .choice
        .as_ref()
        .is_ok_and(|choice| choice.model.is_some());
    let style = match report.problem {
        None if has_model => Style::GREEN,
        None => Style::YELLOW,
        Some(_) => Style::RED,
    };
    listing.styled_row([cell(model_line(report), style)]);
    for (model, problem) in &report.fallbacks {
        match problem {
            Some(problem) => {
                let text = format!("fallback: {model} is unavailable: {problem}");
                listing.styled_row([cell(text, Style::YELLOW)]);
            }
            None => listing.row(format!("fallback: {model}")),
        }
    }
    for note in &report.notes {
        listing.row(format!("note: {note}"));
    }
    let (usable, others): (Vec<_>, Vec<_>) = report
        .providers
        .iter()
        .partition(|provider| provider.usable);
    let mut table = Table::default();
    for provider in usable {
        table.row([
            cell(format!("  {}", provider.name), Style::BOLD),
            cell(describe_access(provider, report), Style::NONE),
        ]);
    }
    if !table.is_empty() {
        listing.blank();
        listing.row("available:");
        listing.table(table);
    }
    listing.blank();
    if !shows_all {
        let count = others.len();
        listing.styled_row([cell(
            format!(
                "{count} more providers need an API key or a server; `bub models --all` lists them"
            ),
            Style::DIM,
        )]);
        return listing;
    }
    listing.row("unavailable:");
    let mut table = Table::default();
    for provider in others {
        table.row([
            cell(format!("  {}", provider.name), Style::NONE),
            cell(provider.todo.clone().unwrap_or_default(), Style::DIM),
        ]);
    }
    listing.table(table);
    listing.blank();
    listing.row(format!(
        "You can also set keys in {} as `api_key.<provider>`, and base URLs as `api_base.<provider>`.",
        report.config_file.display()
    ));
    listing
}

/// Returns the line about the selected model.
fn model_line(report: &ModelsReport) -> String {
    match &report.choice {
        Err(error) => format!("no model: invalid `model`: {error}"),
        Ok(ModelChoice {
            model: None,
            reason: reason @ ChoiceReason::NotAdopted(..),
            ..
        }) => format!("no model configured: {reason}"),
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
fn describe_access(provider: &ProviderReport, report: &ModelsReport) -> String {
    let address = provider.base_url.as_deref();
    let mut servers = report.local_servers.iter();
    if let Some(server) = servers.find(|server| Some(server.base_url.as_str()) == address) {
        return if server.provider == provider.name {
            let models = server.models.join(", ");
            let chosen = report.choice.as_ref().ok();
            let chosen = chosen.and_then(|choice| choice.model.as_ref());
            let is_adopted = chosen.is_some_and(|model| model.provider() == provider.name);
            let note = if is_adopted { "" } else { " (not adopted)" };
            format!("server at {}: {models}{note}", server.base_url)
        } else {
            format!("same server as `{}`", server.provider)
        };
    }
    match &provider.key {
        Some(login @ KeySource::Login(_)) => login.to_string(),
        Some(source) => format!("key {MASK} from {source}"),
        None => "no API key needed".to_owned(),
    }
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
    json!({
        "model": {"id": model.map(ToString::to_string), "why": reason, "problem": problem},
        "fallback_models": fallbacks.collect::<Vec<_>>(),
        "providers": report.providers,
        "local_servers": report.local_servers,
        "notes": report.notes,
    })
}
