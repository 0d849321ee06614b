//! The report of `bub models`: available providers and models, and how to make others available.

use std::path::PathBuf;

use serde::Serialize;

use crate::{
    AccessError, BaseUrl, KeySource, LocalServer, ModelChoice, ModelId, Models, Provider,
    WireFormat, settings::ModelSettings,
};

/// Available models and providers.
#[derive(Debug)]
#[non_exhaustive]
pub struct ModelsReport {
    /// The chosen model, or the reason why none could be chosen.
    pub choice: Result<ModelChoice, AccessError>,
    /// The reason why the chosen model cannot be called, if one is known.
    pub problem: Option<String>,
    /// The fallback models as configured, each with the reason why it cannot be called, if one is known.
    pub fallbacks: Vec<(String, Option<String>)>,
    /// All providers, in the order of the catalog.
    pub providers: Vec<ProviderReport>,
    /// The model servers on this machine that respond.
    pub local_servers: Vec<LocalServer>,
    /// Warnings about the configuration.
    pub notes: Vec<String>,
    /// The config file, in which the user can set keys and base URLs.
    pub config_file: PathBuf,
}

/// Status of a provider. Its fields are serialized in the order of `bub models --json`.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ProviderReport {
    /// Name of the provider.
    pub name: String,
    /// Whether the provider can be called now.
    pub usable: bool,
    /// What to do to make the provider available; `None` if it is available.
    pub todo: Option<String>,
    /// Source of the key or login; `None` if the provider has neither.
    #[serde(rename = "key_from")]
    pub key: Option<KeySource>,
    /// The effective base URL, if it is known.
    pub base_url: Option<String>,
    /// The wire format at the effective base URL.
    pub wire: WireFormat,
    /// Whether the provider runs on this machine.
    pub local: bool,
    /// Model of this provider that bub uses if no model is configured.
    pub default_model: Option<String>,
}

impl ModelsReport {
    pub(crate) async fn new(models: &Models) -> Self {
        let local_servers = models.detect_local_servers().await;
        let choice = models.choose_with_servers(Some(&local_servers)).await;
        let problem = choice.as_ref().ok().and_then(|choice| {
            let provider = models.catalog.get(choice.model.as_ref()?.provider())?;
            let error = models.check_provider(provider).err()?;
            Some(error.to_string())
        });
        let fallbacks = models
            .settings
            .get(ModelSettings::FALLBACK_MODELS)
            .unwrap_or_default();
        let fallbacks = fallbacks.into_iter().map(|text| {
            let problem = fallback_problem(models, &text);
            (text, problem)
        });
        let providers = models
            .catalog
            .iter()
            .filter(|provider| !provider.is_plugin)
            .map(|provider| provider_report(models, provider, &local_servers));
        let config_file = models.settings.config_file().to_owned();
        let (fallbacks, providers) = (fallbacks.collect(), providers.collect());
        let notes = models.config_warnings();
        Self {
            choice,
            problem,
            fallbacks,
            providers,
            local_servers,
            notes,
            config_file,
        }
    }

    /// Returns the models that users can choose now, each once: the chosen model, its fallbacks, the models of local
    /// servers, and the default models of the other available providers.
    pub fn usable_models(&self) -> Vec<ModelId> {
        let choice = self.choice.as_ref().ok();
        let chosen = choice.and_then(|choice| choice.model.clone());
        let fallbacks = self.fallbacks.iter();
        let fallbacks = fallbacks.filter_map(|(text, problem)| match problem {
            None => text.parse().ok(),
            Some(_) => None,
        });
        let served = self.local_servers.iter().flat_map(|server| {
            let models = server.models.iter();
            models.map(|model| ModelId::new(&server.provider, model))
        });
        let providers = self.providers.iter();
        let defaults = providers.filter(|provider| provider.usable && !provider.local);
        let defaults = defaults.filter_map(|provider| {
            let model = provider.default_model.as_ref()?;
            Some(ModelId::new(&provider.name, model))
        });
        let chosen = chosen.filter(|_| self.problem.is_none());
        let mut models = Vec::new();
        for model in chosen
            .into_iter()
            .chain(fallbacks)
            .chain(served)
            .chain(defaults)
        {
            if !models.contains(&model) {
                models.push(model);
            }
        }
        models
    }
}

fn fallback_problem(models: &Models, text: &str) -> Option<String> {
    let checked = models.resolve_model(text).and_then(|id| {
        let provider = models.catalog.get(id.provider());
        provider.map_or(Ok(()), |provider| models.check_provider(provider))
    });
    checked.err().map(|error| error.to_string())
}

fn provider_report(
    models: &Models,
    provider: &Provider,
    servers: &[LocalServer],
) -> ProviderReport {
    let key = models.key_source(&provider.name);
    let base_url = models.keys.base_url(provider).ok();
    let server = servers
        .iter()
        .find(|server| Some(&server.base_url) == base_url.as_ref());
    let problem = models.check_provider(provider).err();
    let problem = problem.map(|error| error.hint());
    // A local server is usable if it responds and has a model, which the settings do not show.
    let todo = match server {
        Some(server) if server.models.is_empty() => {
            Some("the server has no models; load one".to_owned())
        }
        None if provider.local && problem.is_none() => {
            Some(missing_server_hint(models, base_url.as_ref()))
        }
        _ => problem,
    };
    ProviderReport {
        name: provider.name.clone(),
        wire: base_url
            .as_ref()
            .map_or(provider.wire, |base_url| provider.wire_format_at(base_url)),
        base_url: base_url.map(|base_url| base_url.to_string()),
        local: provider.local,
        usable: todo.is_none(),
        key,
        default_model: provider.default_model.clone(),
        todo,
    }
}

fn missing_server_hint(models: &Models, base_url: Option<&BaseUrl>) -> String {
    if !models.settings.get(ModelSettings::LOCAL_MODELS) {
        return "not checked, because `local_models` is off".to_owned();
    }
    let location = base_url
        .map(|base_url| format!(" at {base_url}"))
        .unwrap_or_default();
    format!("no server found{location}; start it")
}
