//! `bub models`: lists available models and explains what the others need.

use std::process::ExitCode;

use bub::CommandContext;
use bub_kernel::Result;
use bub_model::{ChoiceReason, KeySource, ModelChoice, ModelsReport, ProviderReport};
use bub_settings::MASK;
use serde_json::{Value, json};

use super::{listing::Listing, output};

/// Text that commands print if no model is configured.
pub(super) const NO_MODEL_TEXT: &str =
    "no model configured: no API key set and no local server found";

/// List available models and show which one is used
///
/// Lists the configured model, providers with an API key, and local servers. Makes no requests to remote providers.
#[derive(clap::Args)]
pub(super) struct ModelsArgs {
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
    list_models(&report).print_redacted(settings.redactor())
}

fn list_models(report: &ModelsReport) -> Listing {
    let mut listing = Listing::default();
    listing.row(model_line(report));
    for (model, problem) in &report.fallbacks {
        listing.row(match problem {
            Some(problem) => format!("fallback: {model} is unavailable: {problem}"),
            None => format!("fallback: {model}"),
        });
    }
    for note in &report.notes {
        listing.row(format!("note: {note}"));
    }
    let providers = report.providers.iter();
    let width = providers.clone().map(|provider| provider.name.len()).max();
    let width = width.unwrap_or_default();
    let (usable, others): (Vec<_>, Vec<_>) = providers.partition(|provider| provider.usable);
    if !usable.is_empty() {
        listing.blank();
        listing.row("available:");
    }
    for provider in usable {
        let access = describe_access(provider, report);
        listing.row(format!("  {:width$}  {access}", provider.name));
    }
    listing.blank();
    listing.row("unavailable:");
    for provider in others {
        let todo = provider.todo.as_deref().unwrap_or_default();
        listing.row(format!("  {:width$}  {todo}", provider.name));
    }
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
