//! Which model runs, and why.

use std::fmt;
use std::path::PathBuf;

use bub_settings::SettingSource;

use crate::base_url::BaseUrl;
use crate::codex;
use crate::{
    AccessError, KeySource, LocalServer, ModelId, Models,
    settings::{FALLBACK_MODELS, MODEL},
};

/// The model to use.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelChoice {
    /// The model; `None` when there is none to be had, and the offline guide answers.
    pub model: Option<ModelId>,
    /// How it was found.
    pub reason: ChoiceReason,
    /// Models to try when it fails, as they were written. They are looked at only then, so a broken
    /// one breaks nothing.
    pub fallbacks: Vec<String>,
}

impl ModelChoice {
    /// The model and then its fallbacks, to be tried in this order; empty when there is no model.
    ///
    /// A fallback that is no identifier is left out with a warning: it must not break the others.
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
    /// The setting `model` says so.
    Configured(SettingSource),
    /// There is a key for its provider.
    Key(KeySource),
    /// The config adds its provider, names this model and says that no key is needed.
    Added(SettingSource),
    /// Somebody has logged in.
    Login(PathBuf),
    /// A server on this computer has it.
    Local(BaseUrl),
    /// It is the first of `fallback_models` that exists, because there is no other model, or because `model` is
    /// wrong: then with what is wrong.
    Fallback(Option<String>),
    /// There is no model.
    Nothing,
}

impl fmt::Display for ChoiceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configured(origin) => write!(f, "configured in {origin}"),
            Self::Key(source) => write!(f, "no model is configured; key from {source}"),
            Self::Added(origin) => write!(f, "no model is configured; provider from {origin}"),
            Self::Login(file) => write!(f, "no model is configured; login in {}", file.display()),
            Self::Local(base_url) => {
                write!(f, "no model is configured; a server answers at {base_url}")
            }
            Self::Fallback(None) => f.write_str("no model is configured; from `fallback_models`"),
            Self::Fallback(Some(problem)) => {
                write!(f, "from `fallback_models`; `model` is wrong: {problem}")
            }
            Self::Nothing => {
                f.write_str("no model is configured, no key is set and no local server answers")
            }
        }
    }
}

impl Models {
    /// The model to use: the configured one; else that of a provider with a key, in the order of the
    /// catalogue; else that of a login; else that of a local server; else a fallback; else none.
    ///
    /// Local servers are asked only when it comes to that. An error means that `model` is set to
    /// something that does not exist, and that there is no fallback that does.
    pub async fn choose(&self) -> Result<ModelChoice, AccessError> {
        self.warn_ignored_bases();
        let choice = self.choose_from(None).await?;
        if let (ChoiceReason::Fallback(Some(problem)), Some(model)) =
            (&choice.reason, &choice.model)
        {
            tracing::warn!(error = %problem, fallback = %model, "model.invalid");
        }
        if let (
            ChoiceReason::Local(_) | ChoiceReason::Fallback(None) | ChoiceReason::Nothing,
            Some(provider),
        ) = (&choice.reason, self.catalogue.get(codex::PROVIDER))
            && let Err(problem) = self.login(provider)
        {
            tracing::warn!(error = %problem, "model.login_unusable");
        }
        Ok(choice)
    }

    /// The same, when the local servers have been asked already.
    pub(crate) async fn choose_from(
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
            return match self.resolve(&text) {
                Ok(model) => Ok(ModelChoice {
                    model: Some(model),
                    reason: ChoiceReason::Configured(origin()),
                    fallbacks,
                }),
                Err(problem) => {
                    let error = AccessError::Configured {
                        origin: origin(),
                        problem: Box::new(problem),
                    };
                    self.by_fallback(&fallbacks, Some(error.to_string()))
                        .ok_or(error)
                }
            };
        }
        let found = match (self.by_key().or_else(|| self.by_login()), servers) {
            (Some(found), _) => Some(found),
            (None, Some(servers)) => by_local_server(servers),
            (None, None) => by_local_server(&self.local_servers().await),
        };
        let Some((model, reason)) = found else {
            let nothing = ModelChoice {
                model: None,
                reason: ChoiceReason::Nothing,
                fallbacks: Vec::new(),
            };
            return Ok(self.by_fallback(&fallbacks, None).unwrap_or(nothing));
        };
        Ok(ModelChoice {
            model: Some(model),
            reason,
            fallbacks,
        })
    }

    /// The first fallback that exists, with those after it.
    fn by_fallback(&self, fallbacks: &[String], problem: Option<String>) -> Option<ModelChoice> {
        let (index, model) =
            fallbacks
                .iter()
                .enumerate()
                .find_map(|(index, text)| match self.resolve(text) {
                    Ok(model) => Some((index, model)),
                    Err(error) => {
                        tracing::warn!(%error, "model.fallback_skipped");
                        None
                    }
                })?;
        let fallbacks = fallbacks.get(index + 1..).unwrap_or_default().to_vec();
        Some(ModelChoice {
            model: Some(model),
            reason: ChoiceReason::Fallback(problem),
            fallbacks,
        })
    }

    fn by_key(&self) -> Option<(ModelId, ChoiceReason)> {
        self.catalogue.iter().find_map(|provider| {
            let model = ModelId::new(&provider.name, provider.default_model.as_ref()?);
            let reason = match (self.find_key(provider), &provider.origin) {
                (Some(found), _) => ChoiceReason::Key(found.source().clone()),
                (None, Some(origin)) if !provider.needs_key => ChoiceReason::Added(origin.clone()),
                (None, _) => return None,
            };
            Some((model, reason))
        })
    }

    fn by_login(&self) -> Option<(ModelId, ChoiceReason)> {
        let usable = self
            .login(self.catalogue.get(codex::PROVIDER)?)
            .unwrap_or_default();
        let model = || ModelId::new(codex::PROVIDER, codex::DEFAULT_MODEL);
        usable.then(|| (model(), ChoiceReason::Login(self.codex.file())))
    }
}

fn by_local_server(servers: &[LocalServer]) -> Option<(ModelId, ChoiceReason)> {
    servers.iter().find_map(|server| {
        Some((
            server.first_model()?,
            ChoiceReason::Local(server.base_url.clone()),
        ))
    })
}
