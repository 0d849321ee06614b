//! Chooses the model to use.

use std::fmt;
use std::path::PathBuf;

use bub_settings::SettingSource;

use crate::base_url::BaseUrl;
use crate::{AccessError, KeySource, LocalServer, ModelId, Models, settings::ModelSettings};

/// The model to use, its fallbacks and the reason for the choice.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelChoice {
    /// The model; `None` if no model is available. The agent then replies with instructions for setting up a model.
    pub model: Option<ModelId>,
    /// Why the model was chosen.
    pub reason: ChoiceReason,
    /// Models to try if `model` fails, as text from the settings. They are not parsed here, so an invalid fallback does
    /// not affect the choice.
    pub fallbacks: Vec<String>,
}

impl ModelChoice {
    /// Returns the model and its fallbacks, in the order in which to try them. The list is empty if no model is
    /// available.
    ///
    /// Skips a fallback that is not a model identifier and logs a warning, so that it does not affect the others.
    pub fn candidates(&self) -> Vec<ModelId> {
        let fallbacks = self.fallbacks.iter().filter_map(|text| {
            let id = text.parse::<ModelId>();
            id.inspect_err(|error| tracing::warn!(%error, "model.fallback_skipped"))
                .ok()
        });
        self.model.iter().cloned().chain(fallbacks).collect()
    }
}

/// Why a model was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChoiceReason {
    /// The setting `model` names the model.
    Configured(SettingSource),
    /// A key for the model's provider is set.
    Key(KeySource),
    /// The config adds or changes the model's provider, which has a default model and requires no key.
    Added(SettingSource),
    /// A login exists, stored in this file.
    Login(PathBuf),
    /// No model is configured. The local server at this base URL has this model, but the user has not adopted it: bub
    /// sends nothing to a server only because it listens on this machine.
    NotAdopted(ModelId, BaseUrl),
    /// The model is the first valid entry of `fallback_models`. With a text, the setting `model` is invalid for this
    /// reason; with `None`, no other model is available.
    Fallback(Option<String>),
    /// No model is available.
    Nothing,
}

impl fmt::Display for ChoiceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configured(origin) => write!(f, "configured in {origin}"),
            Self::Key(source) => write!(f, "`model` is not set; key from {source}"),
            Self::Added(origin) => write!(f, "`model` is not set; provider from {origin}"),
            Self::Login(file) => write!(f, "`model` is not set; login in {}", file.display()),
            Self::NotAdopted(model, base_url) => write!(
                f,
                "found `{model}` at {base_url}; to use it, run `bub config set model {model}`"
            ),
            Self::Fallback(None) => f.write_str("`model` is not set; from `fallback_models`"),
            Self::Fallback(Some(problem)) => {
                write!(f, "from `fallback_models`; invalid `model`: {problem}")
            }
            Self::Nothing => {
                f.write_str("no model is configured, no key is set and no local server answers")
            }
        }
    }
}

impl Models {
    /// Chooses the model to use.
    ///
    /// The first available of these is chosen: the configured model; the default model of the first provider in the
    /// catalog that has a key; the default model of the login; a fallback model. If none is available, local servers
    /// are queried, and the reason names the first model that one of them has.
    ///
    /// # Errors
    ///
    /// Fails if the setting `model` is invalid and no valid fallback is configured.
    pub async fn choose_model(&self) -> Result<ModelChoice, AccessError> {
        let choice = self.choose_with_servers(None).await?;
        if let (ChoiceReason::Fallback(Some(problem)), Some(model)) =
            (&choice.reason, &choice.model)
        {
            tracing::warn!(error = %problem, fallback = %model, "model.invalid");
        }
        if let ChoiceReason::Fallback(None) | ChoiceReason::NotAdopted(..) | ChoiceReason::Nothing =
            &choice.reason
        {
            for provider in self.catalog.iter() {
                if let Err(error) = self.usable_login(provider) {
                    tracing::warn!(%error, "model.login_unusable");
                }
            }
        }
        Ok(choice)
    }

    /// Returns the model of a local server that bub found and the user can adopt, if no model is available.
    pub async fn local_model_offer(&self) -> Option<(ModelId, BaseUrl)> {
        match self.choose_with_servers(None).await.ok()?.reason {
            ChoiceReason::NotAdopted(model, base_url) => Some((model, base_url)),
            _ => None,
        }
    }

    /// Chooses the model to use, with `servers` as the known local servers. Queries local servers if `servers` is
    /// `None`.
    pub(crate) async fn choose_with_servers(
        &self,
        servers: Option<&[LocalServer]>,
    ) -> Result<ModelChoice, AccessError> {
        let fallbacks = self
            .settings
            .get(ModelSettings::FALLBACK_MODELS)
            .unwrap_or_default();
        let (model, reason) = if let Some(text) = self.settings.get(ModelSettings::MODEL) {
            let origin = self.settings.origin("model");
            let origin = origin.unwrap_or(SettingSource::Default);
            match self.resolve_model(&text) {
                Ok(model) => (model, ChoiceReason::Configured(origin)),
                Err(problem) => {
                    let problem = Box::new(problem);
                    let error = AccessError::InvalidModelSetting { origin, problem };
                    let fallback = self.choose_fallback(&fallbacks, Some(error.to_string()));
                    return fallback.ok_or(error);
                }
            }
        } else if let Some(chosen) = self.choose_by_key().or_else(|| self.choose_by_login()) {
            chosen
        } else {
            if let Some(fallback) = self.choose_fallback(&fallbacks, None) {
                return Ok(fallback);
            }
            let reason = match servers {
                Some(servers) => local_reason(servers),
                None => local_reason(&self.detect_local_servers().await),
            };
            return Ok(ModelChoice {
                model: None,
                reason,
                fallbacks: Vec::new(),
            });
        };
        Ok(ModelChoice {
            model: Some(model),
            reason,
            fallbacks,
        })
    }

    /// Chooses the first valid fallback model. The remaining entries stay fallbacks.
    fn choose_fallback(
        &self,
        fallbacks: &[String],
        problem: Option<String>,
    ) -> Option<ModelChoice> {
        let (index, model) = fallbacks.iter().enumerate().find_map(|(index, text)| {
            let model = self.resolve_model(text);
            let model = model.inspect_err(|error| tracing::warn!(%error, "model.fallback_skipped"));
            Some((index, model.ok()?))
        })?;
        let fallbacks = fallbacks.get(index + 1..).unwrap_or_default().to_vec();
        Some(ModelChoice {
            model: Some(model),
            reason: ChoiceReason::Fallback(problem),
            fallbacks,
        })
    }

    fn choose_by_key(&self) -> Option<(ModelId, ChoiceReason)> {
        self.catalog.iter().find_map(|provider| {
            let model = ModelId::new(&provider.name, provider.default_model.as_ref()?);
            let reason = match (self.find_key(provider), &provider.origin) {
                (Some(lookup), _) => ChoiceReason::Key(lookup.source().clone()),
                (None, Some(origin)) if !provider.needs_key => ChoiceReason::Added(origin.clone()),
                (None, _) => return None,
            };
            Some((model, reason))
        })
    }

    fn choose_by_login(&self) -> Option<(ModelId, ChoiceReason)> {
        self.catalog.iter().find_map(|provider| {
            let login = self.usable_login(provider).ok()??;
            let model = ModelId::new(&provider.name, login.default_model());
            Some((model, ChoiceReason::Login(login.file_path())))
        })
    }
}

/// Returns why no model is chosen: because a local server is not adopted, or because nothing was found.
fn local_reason(servers: &[LocalServer]) -> ChoiceReason {
    let found = servers.iter().find_map(|server| {
        let model = server.first_model()?;
        Some(ChoiceReason::NotAdopted(model, server.base_url.clone()))
    });
    found.unwrap_or(ChoiceReason::Nothing)
}
