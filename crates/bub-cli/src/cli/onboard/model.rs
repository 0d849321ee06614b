//! Sets up the model, its provider, base URL and API key.

use std::sync::Arc;

use bub_kernel::{Error, Result};
use bub_model::settings::API_BASE;
use bub_model::{Catalog, ModelId, Models, ModelsReport};
use bub_settings::{ConfigFile, Settings};
use serde_json::Value;

use super::{
    super::{probe, prompt},
    Onboarding,
};

/// Values from the command line.
pub(super) struct ModelArgs {
    pub(super) model: Option<String>,
    pub(super) base: Option<String>,
    pub(super) key: Option<String>,
}

/// Answers that failed the test. They are offered as defaults of the next attempt.
#[derive(Default)]
struct RejectedModelInput {
    model: Option<String>,
    base: Option<String>,
    key: Option<String>,
}

impl RejectedModelInput {
    fn model_id(&self) -> Option<ModelId> {
        self.model.as_ref()?.parse().ok()
    }
}

/// Asks for a model until one passes the test or the user decides to save it anyway.
pub(super) async fn set_up_model(
    onboarding: &mut Onboarding<'_>,
    mut args: ModelArgs,
) -> Result<()> {
    let mut rejected = RejectedModelInput::default();
    loop {
        let before = onboarding.file.text().to_owned();
        let problem = match try_set_up_model(onboarding, &args, &mut rejected).await {
            Ok(()) => return Ok(()),
            Err(error) if prompt::is_interruption(&error) || !onboarding.can_ask => {
                return Err(error);
            }
            Err(error) => onboarding
                .settings
                .redactor()
                .redact(error.message())
                .into_owned(),
        };
        prompt::print_stderr(&format!(
            "test failed: {}\n",
            super::output::sanitize_line(&problem)
        ));
        if !prompt::confirm("Try again with other values?", true).await? {
            if prompt::confirm("Save anyway?", false).await? {
                return Ok(());
            }
            return Err(prompt::interrupted_error());
        }
        onboarding.restore_file(before);
        // The values from the command line failed.
        args = ModelArgs {
            model: None,
            base: None,
            key: None,
        };
    }
}

/// Asks for the model once and tests it.
async fn try_set_up_model(
    onboarding: &mut Onboarding<'_>,
    args: &ModelArgs,
    rejected: &mut RejectedModelInput,
) -> Result<()> {
    let models = build_models(onboarding)?;
    let report = models.report().await;
    let text = match &args.model {
        Some(text) => text.clone(),
        None if onboarding.can_ask => {
            ask_model(onboarding, &models, &report, rejected.model_id()).await?
        }
        // Also an invalid model; the code below reports it.
        None => match onboarding.settings.text_at("model").or_else(|| {
            let choice = report.choice.as_ref().ok()?;
            Some(choice.model.as_ref()?.to_string())
        }) {
            Some(model) => model,
            None => {
                return Err(Error::config("no model is configured; pass `--model`"));
            }
        },
    };
    let id: ModelId = text
        .parse()
        .map_err(|error| Error::config(format!("{error}")))?;
    let name = id.provider().to_owned();
    let again = rejected.model_id().is_some_and(|id| id.provider() == name);
    let last = if again {
        std::mem::take(rejected)
    } else {
        RejectedModelInput::default()
    };
    *rejected = RejectedModelInput {
        model: Some(text.clone()),
        ..RejectedModelInput::default()
    };
    onboarding.scope_to_owner(&name)?;
    let known = models.catalog().get(&name);
    // A new provider must not receive the key of another one.
    let owner = models.plain_key_owner();
    let is_owner = owner.as_deref() == Some(known.map_or(&*name, |known| &known.name));
    let owner = owner.filter(|_| !is_owner);
    rejected.base = match &args.base {
        Some(base) => Some(base.clone()),
        // A custom provider needs a base URL.
        None if onboarding.can_ask
            && (last.base.is_some()
                || known.is_none_or(|known| known.base_url.is_none())
                    && !has_base_url(onboarding, &name)?) =>
        {
            Some(prompt::prompt_line(&format!("base URL of {name}"), last.base.as_deref()).await?)
        }
        None => None,
    };
    rejected.base.take_if(|base| base.is_empty());
    if let Some(base) = &rejected.base {
        let setting = if known.is_some() {
            format!("api_base.{name}")
        } else {
            format!("providers.{name}.base_url")
        };
        onboarding.set_value(&setting, base)?;
    }
    if onboarding.settings.text_at("model").as_deref() != Some(&text) || args.model.is_some() {
        onboarding.set_value("model", &text)?;
    }
    if let Some(owner) = owner {
        check_key_owner(onboarding, &name, &owner)?;
    }
    rejected.key = match &args.key {
        Some(key) => Some(key.clone()),
        None => ask_key(onboarding, &name, again, last.key).await?,
    };
    if let Some(key) = &rejected.key {
        onboarding.set_value(&format!("api_key.{name}"), key)?;
    }
    let revised = onboarding.revised_settings()?;
    // Report errors that are detectable offline, also with `--no-test`.
    build_models(onboarding)?
        .check_model(&id)
        .map_err(|error| Error::config(error.to_string()))?;
    if onboarding.runs_tests {
        if onboarding.can_ask {
            prompt::print_stderr(&format!("testing {id} … "));
        }
        probe::probe_model(&revised, &id).await.map_err(|problem| {
            // The error names the config file, which does not contain the key yet.
            let file = revised.origin(&format!("api_key.{}", name.replace('-', "_")));
            let file = file
                .filter(|_| rejected.key.is_some())
                .map(|file| file.to_string());
            let source = if args.key.is_some() {
                "stdin"
            } else {
                "your answer"
            };
            Error::config(
                file.map_or_else(|| problem.clone(), |file| problem.replace(&file, source)),
            )
        })?;
        if onboarding.can_ask {
            prompt::print_stderr("ok\n");
        }
    }
    Ok(())
}

fn build_models(onboarding: &Onboarding<'_>) -> Result<Models> {
    let revised = onboarding.revised_settings()?;
    let client = Arc::new(super::super::model_client(&revised));
    Models::new(revised, client).map_err(|error| Error::config(error.to_string()))
}

fn has_base_url(onboarding: &Onboarding<'_>, provider: &str) -> Result<bool> {
    Ok(onboarding
        .revised_settings()?
        .get(&API_BASE)
        .get(provider)
        .is_some())
}

/// Asks for a provider and for one of its models.
async fn ask_model(
    onboarding: &Onboarding<'_>,
    models: &Models,
    report: &ModelsReport,
    last_attempt: Option<ModelId>,
) -> Result<String> {
    let current = onboarding
        .settings
        .text_at("model")
        .and_then(|text| text.parse::<ModelId>().ok());
    let selected = report
        .choice
        .as_ref()
        .ok()
        .and_then(|choice| choice.model.clone())
        .or(current);
    let confirmed = last_attempt.as_ref().map(|id| id.provider().to_owned());
    let selected = last_attempt.or(selected);
    let available: Vec<_> = report
        .providers
        .iter()
        .filter(|provider| provider.usable)
        .map(|provider| provider.name.as_str())
        .collect();
    let all: Vec<_> = models
        .catalog()
        .iter()
        .map(|provider| provider.name.as_str())
        .collect();
    prompt::print_names("providers:", &all);
    if !available.is_empty() {
        prompt::print_names("available:", &available);
    }
    let default = selected
        .as_ref()
        .map(ModelId::provider)
        .or(all.first().copied());
    let provider = ask_provider(models.catalog(), default, confirmed.as_deref()).await?;
    let current_model = selected
        .as_ref()
        .filter(|id| id.provider() == provider)
        .map(|id| id.model().to_owned());
    let local_server = report
        .local_servers
        .iter()
        .find(|server| server.provider == provider);
    let local_model = local_server.and_then(|server| server.models.first().cloned());
    let default_model = models
        .catalog()
        .get(&provider)
        .and_then(|known| known.default_model.clone());
    loop {
        let model = prompt::prompt_line(
            "model",
            current_model
                .as_ref()
                .or(local_model.as_ref())
                .or(default_model.as_ref())
                .map(String::as_str),
        )
        .await?;
        if !model.is_empty() {
            return Ok(format!("{provider}:{model}"));
        }
    }
}

/// Asks for a provider: a known one, or a custom one that the user confirms or has confirmed before.
async fn ask_provider(
    catalog: &Catalog,
    default: Option<&str>,
    confirmed: Option<&str>,
) -> Result<String> {
    loop {
        let name = prompt::prompt_line("provider", default)
            .await?
            .to_ascii_lowercase();
        if let Some(known) = catalog.get(&name) {
            return Ok(known.name.clone());
        }
        if confirmed == Some(&name) {
            return Ok(name);
        }
        let hint = catalog
            .closest_name(&name)
            .map_or(String::new(), |similar| {
                format!("; did you mean `{similar}`?")
            });
        prompt::print_stderr(&format!("unknown provider `{name}`{hint}\n"));
        if !name.is_empty()
            && prompt::confirm(&format!("Add `{name}` as a custom provider?"), false).await?
        {
            return Ok(name);
        }
    }
}

/// Returns the provider to which an unscoped key in the file belongs if no model is configured.
pub(in super::super) fn unscoped_key_owner(
    settings: &Settings,
    file: &ConfigFile,
) -> Option<String> {
    let file = file.parse().ok()?;
    let is_unscoped =
        |value: &Value| !matches!(value, Value::Null | Value::Object(_) | Value::Array(_));
    let has_unscoped = ["api_key", "api_key_command"]
        .iter()
        .any(|name| file.get(*name).is_some_and(is_unscoped));
    let catalog = Catalog::new(settings).ok().filter(|_| has_unscoped)?;
    let key = file.get("api_key").and_then(Value::as_str);
    catalog.plain_key_owner(key).map(|owner| owner.name.clone())
}

/// Fails if an API key that is set without a provider, and so belongs to `owner`, would be sent to `provider`.
///
/// Asking for another key does not help, because the environment overrides the config file.
fn check_key_owner(onboarding: &Onboarding<'_>, provider: &str, owner: &str) -> Result<()> {
    let Some(source) = build_models(onboarding)?.plain_key_source(provider) else {
        return Ok(());
    };
    Err(Error::config(format!(
        "the key from {source} belongs to `{owner}` and is not sent to `{provider}`; name its provider: \
         set `api_key.{owner}` or `api_key.{provider}`, or the variable BUB_<PROVIDER>_API_KEY"
    )))
}

/// Asks for the API key of a provider if it is missing, or if the last attempt failed.
async fn ask_key(
    onboarding: &Onboarding<'_>,
    provider: &str,
    again: bool,
    last: Option<String>,
) -> Result<Option<String>> {
    let models = build_models(onboarding)?;
    let has_key = last.is_some() || models.key_source(provider).is_some();
    if !onboarding.can_ask {
        return Ok(None);
    }
    if !again {
        let report = models.report().await;
        let known = report.providers.iter().find(|known| known.name == provider);
        if has_key || known.is_none_or(|known| known.usable) {
            return Ok(None);
        }
    }
    let on_enter = if has_key {
        "press Enter to use the same key again"
    } else {
        "press Enter to skip"
    };
    let key =
        prompt::prompt_secret(&format!("API key for {provider} (hidden; {on_enter})")).await?;
    Ok(if key.is_empty() { last } else { Some(key) })
}
