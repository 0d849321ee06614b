//! Sets up the model, its provider, base URL and API key.

use bub_kernel::{Error, Result};
use bub_model::settings::ModelSettings;
use bub_model::{Catalog, LocalServer, ModelId, Models, ModelsReport};
use bub_settings::{ConfigFile, Settings};
use serde_json::Value;

use super::{
    super::{config, probe, prompt},
    Onboarding,
};

/// Values from the command line, or values that the user entered and that failed the test. The latter are offered as
/// defaults of the next attempt.
#[derive(Default)]
pub(super) struct ModelInput {
    pub(super) model: Option<String>,
    pub(super) base: Option<String>,
    pub(super) key: Option<String>,
}

impl ModelInput {
    fn model_id(&self) -> Option<ModelId> {
        self.model.as_ref()?.parse().ok()
    }
}

/// Asks for a model until one passes the test or the user decides to save it anyway.
pub(super) async fn set_up_model(
    onboarding: &mut Onboarding<'_>,
    mut args: ModelInput,
) -> Result<()> {
    let mut rejected = ModelInput::default();
    loop {
        let before = onboarding.file.text().to_owned();
        let problem = match try_set_up_model(onboarding, &args, &mut rejected).await {
            Ok(()) => return Ok(()),
            Err(error) if prompt::is_interruption(&error) || !onboarding.can_ask => {
                return Err(error);
            }
            Err(error) => error,
        };
        let problem = onboarding.settings.redactor().redact(problem.message());
        notice!("test failed: {}", super::output::sanitize_line(&problem));
        if !prompt::confirm("Try again with other values?", true).await? {
            if prompt::confirm("Save anyway?", false).await? {
                return Ok(());
            }
            return Err(prompt::interrupted_error());
        }
        onboarding.file.set_text(before);
        // The values from the command line failed, so do not use them again.
        args = ModelInput::default();
    }
}

/// Asks for the model once and tests it.
async fn try_set_up_model(
    onboarding: &mut Onboarding<'_>,
    args: &ModelInput,
    rejected: &mut ModelInput,
) -> Result<()> {
    let models = build_models(onboarding)?;
    let report = models.report().await;
    let text = match &args.model {
        Some(text) => text.clone(),
        None if onboarding.can_ask => {
            ask_model(onboarding, &models, &report, rejected.model_id()).await?
        }
        // The configured model may be invalid; the code below reports that.
        None => {
            let chosen = || Some(report.choice.as_ref().ok()?.model.as_ref()?.to_string());
            let model = onboarding.settings.text_at("model").or_else(chosen);
            model.ok_or_else(|| Error::config("no model is configured; pass `--model`"))?
        }
    };
    let id: ModelId = text
        .parse()
        .map_err(|error| Error::config(format!("{error}")))?;
    let name = id.provider().to_owned();
    let again = rejected.model_id().is_some_and(|id| id.provider() == name);
    let last = if again {
        std::mem::take(rejected)
    } else {
        ModelInput::default()
    };
    *rejected = ModelInput {
        model: Some(text.clone()),
        ..ModelInput::default()
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
    let models = build_models(onboarding)?;
    models
        .check_model(&id)
        .map_err(|error| Error::config(error.to_string()))?;
    if onboarding.runs_tests {
        if onboarding.can_ask {
            prompt::print_stderr(&format!("testing {id} … "));
        }
        let outcome = probe::probe_model(&revised, &models, &id).await;
        outcome.map_err(|problem| {
            // The error names the config file, which does not contain the key yet.
            let file = revised.origin(&format!("api_key.{}", name.replace('-', "_")));
            let source = args.key.as_ref().map_or("your answer", |_| "stdin");
            Error::config(match file.filter(|_| rejected.key.is_some()) {
                Some(file) => problem.replace(&file.to_string(), source),
                None => problem,
            })
        })?;
        if onboarding.can_ask {
            prompt::print_stderr("ok\n");
        }
    }
    Ok(())
}

fn build_models(onboarding: &Onboarding<'_>) -> Result<Models> {
    super::super::models(&onboarding.revised_settings()?, onboarding.logins)
}

fn has_base_url(onboarding: &Onboarding<'_>, provider: &str) -> Result<bool> {
    let bases = onboarding.revised_settings()?.get(ModelSettings::API_BASE);
    Ok(bases.get(provider).is_some())
}

/// Asks for a provider and for one of its models.
async fn ask_model(
    onboarding: &Onboarding<'_>,
    models: &Models,
    report: &ModelsReport,
    last_attempt: Option<ModelId>,
) -> Result<String> {
    let configured = || onboarding.settings.text_at("model")?.parse().ok();
    let confirmed = last_attempt.as_ref().map(|id| id.provider().to_owned());
    let chosen = || report.choice.as_ref().ok()?.model.clone();
    let found = || {
        report
            .local_servers
            .iter()
            .find_map(LocalServer::first_model)
    };
    let selected: Option<ModelId> = last_attempt
        .or_else(chosen)
        .or_else(configured)
        .or_else(found);
    let usable = report.providers.iter().filter(|provider| provider.usable);
    let available: Vec<_> = usable.map(|provider| provider.name.as_str()).collect();
    let catalog = models.catalog();
    let all: Vec<_> = catalog
        .iter()
        .map(|provider| provider.name.as_str())
        .collect();
    prompt::print_names("providers:", &all);
    if !available.is_empty() {
        prompt::print_names("available:", &available);
    }
    let default = selected.as_ref().map(ModelId::provider);
    let default = default.or(all.first().copied());
    let provider = ask_provider(catalog, default, confirmed.as_deref()).await?;
    let current_model = selected.as_ref().filter(|id| id.provider() == provider);
    let mut servers = report.local_servers.iter();
    let local_server = servers.find(|server| server.provider == provider);
    let default = current_model
        .map(ModelId::model)
        .or_else(|| local_server?.models.first().map(String::as_str))
        .or_else(|| catalog.get(&provider)?.default_model.as_deref());
    loop {
        let model = prompt::prompt_line("model", default).await?;
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
        match catalog.closest_name(&name) {
            Some(similar) => notice!("unknown provider `{name}`; did you mean `{similar}`?"),
            None => notice!("unknown provider `{name}`"),
        }
        if !name.is_empty()
            && prompt::confirm(&format!("Add `{name}` as a custom provider?"), false).await?
        {
            return Ok(name);
        }
    }
}

/// Guesses the provider of an API key that the config file sets without a provider. The guess is needed if no model is
/// configured. Returns `None` if the file has no such key.
pub(in super::super) fn unscoped_key_owner(
    settings: &Settings,
    file: &ConfigFile,
) -> Option<String> {
    let file = file.parse().ok()?;
    let has_unscoped = ["api_key", "api_key_command"]
        .iter()
        .any(|name| file.get(*name).is_some_and(config::is_unscoped));
    let catalog = Catalog::new(settings).ok().filter(|_| has_unscoped)?;
    let key = file.get("api_key").and_then(Value::as_str);
    catalog.plain_key_owner(key).map(|owner| owner.name.clone())
}

/// Fails if bub would send an API key that is set without a provider to `provider`. The key belongs to `owner`.
///
/// The user cannot solve this by entering another key, because the environment overrides the config file.
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
        // A server that the user added may need a key, although it is on this machine.
        let settings = onboarding.revised_settings()?;
        let is_added = settings.text_at(&format!("providers.{provider}.base_url"));
        let is_keyless = |local: bool| local && is_added.is_none();
        if has_key || known.is_none_or(|known| known.usable || is_keyless(known.local)) {
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
