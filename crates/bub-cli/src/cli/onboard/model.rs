//! Sets up the model, its provider, base URL and API key.

use bub_kernel::{Error, Result};
use bub_model::settings::ModelSettings;
use bub_model::{
    BaseUrl, Catalog, LocalServer, ModelId, Models, ModelsReport, Provider, ProviderReport,
};
use bub_settings::{
    ConfigFile, Settings,
    text_format::{BASE_URL, is_base_url},
};
use serde_json::Value;

use super::{
    super::{
        config,
        picker::{self, Picker, PickerItem},
        probe, prompt,
    },
    Onboarding,
};

/// Maximum models that a plain prompt lists.
const MAX_LISTED_MODELS: usize = 60;

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
        let problem = onboarding.name_answer(problem.message());
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
    let last_attempt = rejected.model_id();
    let selected = select_model(onboarding, &report, last_attempt.clone());
    let given = match &args.model {
        Some(text) => Some(text.clone()),
        None if onboarding.can_ask => None,
        // The configured model may be invalid; the code below reports that.
        None => {
            let chosen = || Some(report.choice.as_ref().ok()?.model.as_ref()?.to_string());
            let model = onboarding.settings.text_at("model").or_else(chosen);
            Some(model.ok_or_else(|| Error::config("no model is configured; pass `--model`"))?)
        }
    };
    let name = if let Some(text) = &given {
        parse_model(text)?.provider().to_owned()
    } else {
        let confirmed = last_attempt.as_ref().map(ModelId::provider);
        ask_provider(onboarding, &models, &report, selected.as_ref(), confirmed).await?
    };
    let current_model = selected.filter(|id| id.provider() == name);
    // Until the user chooses a model, the settings need one of this provider.
    let default = current_model
        .as_ref()
        .map(ModelId::model)
        .map(str::to_owned);
    let default = default.or_else(|| first_model(&models, &report, &name));
    let text = given.clone().unwrap_or_else(|| {
        let model = default.as_deref().unwrap_or("default");
        format!("{name}:{model}")
    });
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
    let default_base = known.and_then(|known| known.base_url.as_ref());
    let default_base = default_base.map(BaseUrl::as_str);
    rejected.base = match &args.base {
        Some(base) => Some(with_scheme(base.clone())),
        None if onboarding.can_ask
            && (last.base.is_some()
                || again && known.is_some_and(has_default_address)
                || needs_base_url(known, &report) && !has_base_url(onboarding, &name)?) =>
        {
            let default = last.base.as_deref().or(default_base);
            Some(ask_base_url(&name, default).await?)
        }
        None => None,
    };
    if let Some(base) = rejected
        .base
        .as_deref()
        .filter(|base| Some(*base) != default_base)
    {
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
    let text = if let Some(text) = given {
        text
    } else {
        let model = ask_model(onboarding, &name, &report, default).await?;
        let text = format!("{name}:{model}");
        rejected.model = Some(text.clone());
        if onboarding.revised_settings()?.text_at("model").as_deref() != Some(&text) {
            onboarding.set_value("model", &text)?;
        }
        text
    };
    let source = args.key.as_ref().map_or("your answer", |_| "stdin");
    let source = Some(source).filter(|_| rejected.key.is_some());
    test_model(onboarding, &parse_model(&text)?, source).await
}

fn parse_model(text: &str) -> Result<ModelId> {
    text.parse()
        .map_err(|error| Error::config(format!("{error}")))
}

/// Tests the model with the values entered so far. `key_source` is where a new key comes from.
async fn test_model(
    onboarding: &Onboarding<'_>,
    id: &ModelId,
    key_source: Option<&str>,
) -> Result<()> {
    let name = id.provider();
    let revised = onboarding.revised_settings()?;
    // Report errors that are detectable offline, also with `--no-test`.
    let models = build_models(onboarding)?;
    models
        .check_model(id)
        .map_err(|error| Error::config(error.to_string()))?;
    if onboarding.runs_tests {
        if onboarding.can_ask {
            prompt::print_stderr(&format!("testing {id} … "));
        }
        let outcome = probe::probe_model(&revised, &models, id).await;
        outcome.map_err(|problem| {
            // The error names the config file, which does not contain the key yet.
            let file = revised.origin(&format!("api_key.{}", name.replace('-', "_")));
            Error::unknown(match (file, key_source) {
                (Some(file), Some(source)) => problem.replace(&file.to_string(), source),
                _ => problem,
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

/// Returns whether the base URL of a provider must be asked for, unless it is set: that of a custom provider, and that of
/// a local server that does not respond at its default address.
fn needs_base_url(provider: Option<&Provider>, report: &ModelsReport) -> bool {
    let Some(provider) = provider else {
        return true;
    };
    let mut reports = report.providers.iter();
    let is_usable = reports.any(|known| known.name == provider.name && known.usable);
    provider.base_url.is_none() || has_default_address(provider) && !is_usable
}

/// Returns whether a provider is a server on this machine that the config does not describe.
fn has_default_address(provider: &Provider) -> bool {
    provider.local && provider.origin.is_none()
}

/// Returns a base URL with its scheme, which may be omitted for a server on this machine.
fn with_scheme(base: String) -> String {
    let url = format!("http://{base}");
    let is_loopback = BaseUrl::parse(&url).is_some_and(|url| url.is_loopback());
    if is_loopback && !base.contains("://") {
        url
    } else {
        base
    }
}

/// Returns the model that the questions offer: that of the last attempt, the chosen or configured one, or one of a local
/// server.
fn select_model(
    onboarding: &Onboarding<'_>,
    report: &ModelsReport,
    last_attempt: Option<ModelId>,
) -> Option<ModelId> {
    let configured = || onboarding.settings.text_at("model")?.parse().ok();
    let chosen = || report.choice.as_ref().ok()?.model.clone();
    let mut servers = report.local_servers.iter();
    last_attempt
        .or_else(chosen)
        .or_else(configured)
        .or_else(|| servers.find_map(LocalServer::first_model))
}

/// Returns a model of a provider: the first one of its local server, or its default.
fn first_model(models: &Models, report: &ModelsReport, provider: &str) -> Option<String> {
    let mut servers = report.local_servers.iter();
    let server = servers.find(|server| server.provider == provider);
    let first = server.and_then(|server| server.models.first().cloned());
    first.or_else(|| models.catalog().get(provider)?.default_model.clone())
}

/// Asks for a provider: a known one, or a custom one that the user confirms or has confirmed before.
async fn ask_provider(
    onboarding: &Onboarding<'_>,
    models: &Models,
    report: &ModelsReport,
    selected: Option<&ModelId>,
    confirmed: Option<&str>,
) -> Result<String> {
    let catalog = models.catalog();
    let all: Vec<_> = catalog
        .iter()
        .map(|provider| provider.name.as_str())
        .collect();
    let default = selected.map(ModelId::provider).or(all.first().copied());
    if picker::can_pick(&onboarding.settings) {
        return pick_provider(onboarding, catalog, report, default).await;
    }
    let usable = report.providers.iter().filter(|provider| provider.usable);
    let available: Vec<_> = usable.map(|provider| provider.name.as_str()).collect();
    prompt::print_names("providers:", &all);
    if !available.is_empty() {
        prompt::print_names("available:", &available);
    }
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
        notice!("unknown provider `{name}`");
        if let Some(similar) = catalog.closest_name(&name)
            && prompt::confirm(&format!("Did you mean `{similar}`?"), true).await?
        {
            return Ok(similar.to_owned());
        }
        if !name.is_empty()
            && prompt::confirm(&format!("Add `{name}` as a custom provider?"), false).await?
        {
            return Ok(name);
        }
    }
}

/// Lets the user pick a provider. Those that can be called now come first.
async fn pick_provider(
    onboarding: &Onboarding<'_>,
    catalog: &Catalog,
    report: &ModelsReport,
    default: Option<&str>,
) -> Result<String> {
    let mut providers: Vec<_> = report.providers.iter().collect();
    providers.sort_by_key(|provider| !provider.usable);
    let items = providers.into_iter().map(|provider| PickerItem {
        name: provider.name.clone(),
        about: match &provider.todo {
            // A search for `local` finds it.
            Some(todo) if provider.local => format!("local: {todo}"),
            Some(todo) => todo.clone(),
            None => "available".to_owned(),
        },
        aliases: catalog.get(&provider.name).map_or_else(Vec::new, |known| {
            known.aliases.iter().copied().map(str::to_owned).collect()
        }),
    });
    let mut items: Vec<_> = items.collect();
    // A custom provider of the last attempt is not in the config file yet.
    let is_listed = |name: &&str| items.iter().any(|item| item.name == *name);
    if let Some(custom) = default.filter(|name| !is_listed(name)) {
        items.insert(
            0,
            PickerItem {
                name: custom.to_owned(),
                about: "custom provider".to_owned(),
                aliases: Vec::new(),
            },
        );
    }
    let picker = Picker {
        question: "provider".to_owned(),
        items,
        default: default.map(str::to_owned),
        custom: Some("add as a custom provider"),
        suggest: |items, typed| {
            let names = items.iter().map(|item| item.name.as_str());
            let similar = bub_settings::closest_match(typed, names)?;
            items.iter().position(|item| item.name == similar)
        },
    };
    let name = picker::pick(picker, &onboarding.settings).await?;
    Ok(name.to_ascii_lowercase())
}

/// Asks for the base URL of a provider until it is one.
async fn ask_base_url(provider: &str, default: Option<&str>) -> Result<String> {
    loop {
        let base = prompt::prompt_line(&format!("base URL of {provider}"), default).await?;
        let base = with_scheme(base);
        if is_base_url(&base) {
            return Ok(base);
        }
        notice!("not a base URL: expected {}", BASE_URL.expected);
    }
}

/// Asks for a model: one that the server of the provider lists, or any name.
async fn ask_model(
    onboarding: &Onboarding<'_>,
    provider: &str,
    report: &ModelsReport,
    default: Option<String>,
) -> Result<String> {
    let mut servers = report.local_servers.iter();
    let server = servers.find(|server| server.provider == provider);
    let listed = match server {
        Some(server) => server.models.clone(),
        None if onboarding.runs_tests => {
            let (settings, models) = (onboarding.revised_settings()?, build_models(onboarding)?);
            let listed = probe::list_models(&settings, &models, provider).await;
            listed.unwrap_or_else(|problem| {
                let problem = settings.redactor().redact(&problem);
                let problem = super::output::sanitize_line(&problem);
                notice!("cannot list the models of {provider}: {problem}");
                Vec::new()
            })
        }
        None => Vec::new(),
    };
    let default = default.or_else(|| listed.first().cloned());
    if !listed.is_empty() && picker::can_pick(&onboarding.settings) {
        let items = listed.into_iter().map(|name| PickerItem {
            name,
            about: String::new(),
            aliases: Vec::new(),
        });
        let picker = Picker {
            question: "model".to_owned(),
            items: items.collect(),
            default,
            custom: Some("use this name"),
            suggest: |_, _| None,
        };
        return picker::pick(picker, &onboarding.settings).await;
    }
    if !listed.is_empty() {
        let names: Vec<_> = listed.iter().map(String::as_str).collect();
        prompt::print_names("models:", names.get(..MAX_LISTED_MODELS).unwrap_or(&names));
    }
    loop {
        let model = prompt::prompt_line("model", default.as_deref()).await?;
        if !model.is_empty() {
            return Ok(model);
        }
        notice!("enter the name of a model");
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

/// Returns whether a provider cannot be called without a key. A server on this machine rarely needs one: if it does, the
/// config says so, or the test fails and the key is asked for.
fn needs_key(models: &Models, known: &ProviderReport) -> bool {
    let base_url = known.base_url.as_deref().and_then(BaseUrl::parse);
    let is_loopback = base_url.is_some_and(|url| url.is_loopback());
    let provider = models.catalog().get(&known.name);
    let is_required = provider
        .is_some_and(|provider| provider.needs_key && (!is_loopback || provider.origin.is_some()));
    is_required && known.key.is_none()
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
        if has_key || !known.is_some_and(|known| needs_key(&models, known)) {
            return Ok(None);
        }
    }
    if let Some(url) = models
        .catalog()
        .get(provider)
        .and_then(|known| known.key_url)
    {
        notice!("create an API key at {url}");
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
