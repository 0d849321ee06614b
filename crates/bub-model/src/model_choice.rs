//! Chooses the model to use.

use std::fmt;
use std::path::PathBuf;

use bub_settings::SettingSource;

use crate::base_url::BaseUrl;
use crate::codex;
use crate::{
    AccessError, KeySource, LocalServer, ModelId, Models,
    settings::{FALLBACK_MODELS, MODEL},
};

/// The model to use, its fallbacks and the reason for the choice.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelChoice {
    /// The model; `None` if no model is available. The agent then replies with the offline guide.
    pub model: Option<ModelId>,
    /// Why the model was chosen.
    pub reason: ChoiceReason,
    /// Models to try if the first one fails, as configured. They are not parsed here, so an invalid fallback does not
    /// affect the choice.
    pub fallbacks: Vec<String>,
}

impl ModelChoice {
    /// Returns the model and its fallbacks, in the order in which to try them. Returns an empty list without a model.
    ///
    /// Skips a fallback that is not a model identifier and logs a warning, so that it does not affect the others.
    pub fn candidates(&self) -> Vec<ModelId> {
        let fallbacks = self
            .fallbacks
            .iter()
            .filter_map(|text| match text.parse::<ModelId>() {
                Ok(id) => Some(id),
                Err(error) => {
                    tracing::warn!(%error, "model.fallback_skipped");
                    None
                }
            });
        self.model.iter().cloned().chain(fallbacks).collect()
    }
}

/// Why a model was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChoiceReason {
    /// The setting `model` names it.
    Configured(SettingSource),
    /// A key for its provider is set.
    Key(KeySource),
    /// The config adds its provider, which has a default model and requires no key.
    Added(SettingSource),
    /// A login exists, stored in this file.
    Login(PathBuf),
    /// The local server at this base URL has it.
    Local(BaseUrl),
    /// It is the first valid entry of `fallback_models`: no other model is available, or `model` is invalid for this
    /// reason.
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
            Self::Local(base_url) => {
                write!(f, "`model` is not set; server found at {base_url}")
            }
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
    /// catalog that has a key; the default model of the login; the first model of a local server; a fallback model.
    /// Local servers are queried only if no earlier source applies.
    ///
    /// # Errors
    ///
    /// Fails if the setting `model` is invalid and no valid fallback is configured.
    pub async fn choose_model(&self) -> Result<ModelChoice, AccessError> {
        self.warn_ignored_base_urls();
        let choice = self.choose_with_servers(None).await?;
        if let (ChoiceReason::Fallback(Some(problem)), Some(model)) =
            (&choice.reason, &choice.model)
        {
            tracing::warn!(error = %problem, fallback = %model, "model.invalid");
        }
        if let (
            ChoiceReason::Local(_) | ChoiceReason::Fallback(None) | ChoiceReason::Nothing,
            Some(provider),
        ) = (&choice.reason, self.catalog.get(codex::PROVIDER))
            && let Err(problem) = self.has_usable_login(provider)
        {
            tracing::warn!(error = %problem, "model.login_unusable");
        }
        Ok(choice)
    }

    /// Chooses the model to use, with `servers` as the known local servers. Queries local servers if `servers` is `None`.
    pub(crate) async fn choose_with_servers(
        &self,
        servers: Option<&[LocalServer]>,
    ) -> Result<ModelChoice, AccessError> {
        let fallbacks = self.settings.get(&FALLBACK_MODELS).unwrap_or_default();
        if let Some(text) = self.settings.get(&MODEL) {
            let origin = || {
                self.settings
                    .origin("model")
                    .unwrap_or(SettingSource::Default)
            };
            return match self.resolve_model(&text) {
                Ok(model) => Ok(ModelChoice {
                    model: Some(model),
                    reason: ChoiceReason::Configured(origin()),
                    fallbacks,
                }),
                Err(problem) => {
                    let error = AccessError::InvalidModelSetting {
                        origin: origin(),
                        problem: Box::new(problem),
                    };
                    self.choose_fallback(&fallbacks, Some(error.to_string()))
                        .ok_or(error)
                }
            };
        }
        let chosen = match (
            self.choose_by_key().or_else(|| self.choose_by_login()),
            servers,
        ) {
            (Some(chosen), _) => Some(chosen),
            (None, Some(servers)) => choose_local(servers),
            (None, None) => choose_local(&self.detect_local_servers().await),
        };
        let Some((model, reason)) = chosen else {
            let unavailable = ModelChoice {
                model: None,
                reason: ChoiceReason::Nothing,
                fallbacks: Vec::new(),
            };
            return Ok(self
                .choose_fallback(&fallbacks, None)
                .unwrap_or(unavailable));
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
            match self.resolve_model(text) {
                Ok(model) => Some((index, model)),
                Err(error) => {
                    tracing::warn!(%error, "model.fallback_skipped");
                    None
                }
            }
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
        let usable = self
            .has_usable_login(self.catalog.get(codex::PROVIDER)?)
            .unwrap_or_default();
        let model = || ModelId::new(codex::PROVIDER, codex::DEFAULT_MODEL);
        usable.then(|| (model(), ChoiceReason::Login(self.codex.file_path())))
    }
}

fn choose_local(servers: &[LocalServer]) -> Option<(ModelId, ChoiceReason)> {
    servers.iter().find_map(|server| {
        Some((
            server.first_model()?,
            ChoiceReason::Local(server.base_url.clone()),
        ))
    })
}
