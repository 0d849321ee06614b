//! Which model runs, and why.

use std::fmt;
use std::path::PathBuf;

use bub_settings::{Origin, core};

use crate::base_url::BaseUrl;
use crate::codex;
use crate::{AccessError, KeySource, LocalServer, ModelId, Models};

/// The model to use.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Choice {
    /// The model; `None` when there is none to be had, and the offline guide answers.
    pub model: Option<ModelId>,
    /// How it was found.
    pub why: Why,
    /// Models to try when it fails, as they were written. They are looked at only then, so a broken
    /// one breaks nothing.
    pub fallbacks: Vec<String>,
}

impl Choice {
    /// The model and then its fallbacks, to be tried in this order; empty when there is no model.
    ///
    /// A fallback that is no identifier is left out with a warning: it must not break the others.
    pub fn candidates(&self) -> Vec<ModelId> {
        let fallbacks = self.fallbacks.iter().filter_map(|text| match text.parse::<ModelId>() {
            Ok(id) => Some(id),
            Err(error) => {
                tracing::warn!("fallback left out: {error}");
                None
            }
        });
        let fallbacks = fallbacks.filter(|_| self.model.is_some());
        self.model.iter().cloned().chain(fallbacks).collect()
    }
}

/// Why a model was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The setting `model` says so.
    Configured(Origin),
    /// There is a key for its provider.
    Key(KeySource),
    /// The config adds its provider, names this model and says that no key is needed.
    Added(Origin),
    /// Somebody has logged in.
    Login(PathBuf),
    /// A server on this computer has it.
    Local(BaseUrl),
    /// There is no model.
    Nothing,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configured(origin) => write!(f, "configured in {origin}"),
            Self::Key(source) => write!(f, "no model is configured; key from {source}"),
            Self::Added(origin) => write!(f, "no model is configured; provider from {origin}"),
            Self::Login(file) => write!(f, "no model is configured; login in {}", file.display()),
            Self::Local(base_url) => write!(f, "no model is configured; a server answers at {base_url}"),
            Self::Nothing => f.write_str("no model is configured, no key is set and no local server answers"),
        }
    }
}

impl Models {
    /// The model to use: the configured one; else that of a provider with a key, in the order of the
    /// catalogue; else that of a login; else that of a local server; else none.
    ///
    /// Local servers are asked only when it comes to that. An error means that `model` is set to
    /// something that does not exist.
    pub async fn choose(&self) -> Result<Choice, AccessError> {
        self.choose_from(None).await
    }

    /// The same, when the local servers have been asked already.
    pub(crate) async fn choose_from(&self, servers: Option<&[LocalServer]>) -> Result<Choice, AccessError> {
        let fallbacks = self.settings.get(&core::FALLBACK_MODELS).unwrap_or_default();
        if let Some(text) = self.settings.get(&core::MODEL) {
            let model = Some(self.resolve(&text)?);
            let why = Why::Configured(self.settings.origin("model").unwrap_or(Origin::Default));
            return Ok(Choice { model, why, fallbacks });
        }
        let found = match (self.by_key().or_else(|| self.by_login()), servers) {
            (Some(found), _) => Some(found),
            (None, Some(servers)) => by_local_server(servers),
            (None, None) => by_local_server(&self.local_servers().await),
        };
        let (model, why) = found.map_or((None, Why::Nothing), |(model, why)| (Some(model), why));
        Ok(Choice { model, why, fallbacks })
    }

    fn by_key(&self) -> Option<(ModelId, Why)> {
        self.catalogue.iter().find_map(|provider| {
            let model = ModelId::new(&provider.name, provider.default_model.as_ref()?);
            let why = match (self.find_key(provider), &provider.origin) {
                (Some(found), _) => Why::Key(found.source().clone()),
                (None, Some(origin)) if !provider.needs_key => Why::Added(origin.clone()),
                (None, _) => return None,
            };
            Some((model, why))
        })
    }

    fn by_login(&self) -> Option<(ModelId, Why)> {
        let usable = self.codex.is_logged_in() && self.catalogue.get(codex::PROVIDER)?.login.is_some();
        let model = || ModelId::new(codex::PROVIDER, codex::DEFAULT_MODEL);
        usable.then(|| (model(), Why::Login(self.codex.file())))
    }
}

fn by_local_server(servers: &[LocalServer]) -> Option<(ModelId, Why)> {
    servers.iter().find_map(|server| Some((server.first_model()?, Why::Local(server.base_url.clone()))))
}
