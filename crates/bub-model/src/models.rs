//! The available models. [`Models`] finds the endpoint of a model: its base URL, wire format and credentials.

use std::sync::Arc;

use bub_settings::{Secret, Settings, SettingsError};

use crate::api_keys::{ApiKeys, KeyLookup};
use crate::client_args::ClientArgs;
use crate::fetch::Fetch;
use crate::local::{self, LocalServer};
use crate::models_report::ModelsReport;
use crate::{
    AccessError, Catalog, ChatRequest, CredentialError, Endpoint, HttpRequest, KeySource,
    LoginFactory, MediaLimits, ModelId, Provider, ProviderLogin, settings::ModelSettings,
};

/// The models that are available with the current settings: catalog, keys and logins.
///
/// Creating it only reads settings. Keys are looked up when a model is called.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use bub_model::{CallOptions, Candidates, ChatRequest, HttpOptions, ModelClient, Models};
/// use bub_settings::{Environment, Loader};
///
/// # async fn call() -> Result<(), Box<dyn std::error::Error>> {
/// let settings = Arc::new(Loader::new(Environment::from_process())
///     .sections(bub_model::settings::sections())
///     .load()?);
/// let http = HttpOptions::from_environment(settings.environment());
/// let client = ModelClient::new(http, settings.redactor().clone());
/// let models = Arc::new(Models::new(settings, Arc::new(client.clone()), &[])?);
///
/// let choice = models.choose_model().await?;
/// println!("{}", choice.reason);
/// let candidates = Candidates::new(models, choice.candidates());
/// let answer = client.stream(candidates, ChatRequest::default(), CallOptions::default());
/// # Ok(())
/// # }
/// ```
pub struct Models {
    pub(crate) settings: Arc<Settings>,
    pub(crate) catalog: Catalog,
    pub(crate) keys: ApiKeys,
    logins: Vec<Arc<dyn ProviderLogin>>,
    fetch: Arc<dyn Fetch>,
    client_args: ClientArgs,
}

impl Models {
    /// Creates the models that are available with these settings. `logins` are the logins of plugins.
    ///
    /// # Errors
    ///
    /// Fails if `providers` has an invalid entry. The error names the file and line.
    pub fn new(
        settings: Arc<Settings>,
        fetch: Arc<dyn Fetch>,
        logins: &[LoginFactory],
    ) -> Result<Self, SettingsError> {
        let catalog = Catalog::new(&settings)?;
        let client_args = ClientArgs::from_settings(&settings);
        client_args.warn_unsupported();
        let open = |factory: &LoginFactory| factory(&settings, Arc::clone(&fetch));
        Ok(Self {
            logins: logins.iter().map(open).collect(),
            keys: ApiKeys::new(Arc::clone(&settings), &catalog),
            settings,
            catalog,
            fetch,
            client_args,
        })
    }

    /// Returns the provider catalog.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Parses a model identifier and replaces an alias with the canonical name of the provider.
    pub fn resolve_model(&self, text: &str) -> Result<ModelId, AccessError> {
        let id: ModelId = text.parse()?;
        let provider = self.find_provider(&id)?;
        let canonical = ModelId::new(&provider.name, id.model());
        if id.is_deprecated() {
            let hint = format_args!("write `{canonical}`");
            tracing::warn!(model = text, %hint, "model.deprecated_name");
        }
        Ok(canonical)
    }

    /// Checks that the provider of a model exists and has a valid base URL, without a network request.
    pub fn check_model(&self, id: &ModelId) -> Result<(), AccessError> {
        match self.find_provider(id)? {
            provider if provider.is_plugin => Ok(()),
            provider => self.keys.base_url(provider).map(drop),
        }
    }

    /// Returns the endpoint of a model. Call this method before every model call: it is cheap and refreshes the login.
    pub async fn endpoint(&self, id: &ModelId) -> Result<Endpoint, AccessError> {
        let provider = self.find_provider(id)?;
        let id = &ModelId::new(&provider.name, id.model());
        let custom = self.keys.configured_base_url(provider)?;
        let login = self.login(provider).filter(|_| custom.is_none());
        if let Some(lookup) = self.keys.find_key(provider)? {
            let source = lookup.source().clone();
            let key = self.keys.resolve_key(provider, lookup).await?;
            return match login.and_then(|login| login.endpoint_with_key(id, &key)) {
                Some(endpoint) => Ok(login_endpoint(provider, endpoint, source)),
                None => self.plain_endpoint(provider, id, Some((key, source))),
            };
        }
        if let Some(login) = login {
            let endpoint = login.endpoint(id).await;
            if let Some(endpoint) = endpoint.map_err(|error| login_error(login, error))? {
                let source = KeySource::Login(login.file_path());
                let mut endpoint = login_endpoint(provider, endpoint, source);
                endpoint.sign_in_command = Some(login.sign_in_command());
                return Ok(endpoint);
            }
        }
        self.plain_endpoint(provider, id, None)
    }

    /// Returns an endpoint with new credentials after the provider rejected the credentials of `refused`.
    ///
    /// Refreshes the login or runs the key command again. Returns `None` if no other credentials are available.
    pub async fn renew_endpoint(
        &self,
        refused: &Endpoint,
    ) -> Result<Option<Endpoint>, AccessError> {
        let provider = self.find_provider(&refused.id)?;
        let renewed = match &refused.key {
            Some(KeySource::Command(_)) => self.keys.forget_key(provider).await,
            Some(KeySource::Login(_)) => match self.login(provider) {
                Some(login) => login
                    .renew(refused)
                    .await
                    .map_err(|error| login_error(login, error))?,
                None => false,
            },
            _ => false,
        };
        if !renewed {
            return Ok(None);
        }
        self.endpoint(&refused.id).await.map(Some)
    }

    /// Returns the model servers on this machine that respond now. The list is empty if `local_models` is off.
    pub async fn detect_local_servers(&self) -> Vec<LocalServer> {
        if !self.settings.get(ModelSettings::LOCAL_MODELS) {
            return Vec::new();
        }
        let local = self.catalog.iter().filter(|provider| provider.local);
        let candidates =
            local.filter_map(|provider| Some((provider, self.keys.base_url(provider).ok()?)));
        local::find_servers(&*self.fetch, candidates.collect()).await
    }

    /// Reports which providers and models are available, and why others are not.
    pub async fn report(&self) -> ModelsReport {
        ModelsReport::new(self).await
    }

    /// Returns the key of a provider, or the command that prints the key. Logs a warning for an unreadable key and
    /// treats it as missing.
    pub(crate) fn find_key(&self, provider: &Provider) -> Option<KeyLookup> {
        self.keys.find_key(provider).unwrap_or_else(|error| {
            tracing::warn!(%error, "model.key_unreadable");
            None
        })
    }

    /// Checks that a provider can be called, as far as it can be determined without a network request.
    pub(crate) fn check_provider(&self, provider: &Provider) -> Result<(), AccessError> {
        if provider.is_plugin {
            return Ok(());
        }
        let base_url = self.keys.base_url(provider)?;
        if let Some(lookup) = self.keys.find_key(provider)? {
            return self.keys.check_key(provider, &lookup);
        }
        let needs_key = provider.needs_key && !base_url.is_loopback();
        if self.usable_login(provider)?.is_none() && needs_key {
            return Err(self.missing_key_error(provider));
        }
        Ok(())
    }

    /// Returns the login of a provider, if a plugin adds one. Of several, the login that was added last.
    fn login(&self, provider: &Provider) -> Option<&dyn ProviderLogin> {
        let mut logins = self.logins.iter().rev();
        logins
            .find(|login| login.provider() == provider.name && !provider.has_replaced_base_url)
            .map(|login| &**login)
    }

    /// Returns the login of a provider if the provider can be called with it. Fails if the login exists but cannot be
    /// used.
    pub(crate) fn usable_login(
        &self,
        provider: &Provider,
    ) -> Result<Option<&dyn ProviderLogin>, AccessError> {
        let possible = |_: &_| matches!(self.keys.configured_base_url(provider), Ok(None));
        let Some(login) = self.login(provider).filter(possible) else {
            return Ok(None);
        };
        let usable = login.has_usable_login();
        let usable = usable.map_err(|error| login_error(login, error))?;
        Ok(usable.then_some(login))
    }

    /// Returns warnings: settings of unknown providers and keys sent without encryption.
    pub(crate) fn config_warnings(&self) -> Vec<String> {
        let unknown = self
            .keys
            .scoped_names()
            .filter(|(_, name)| self.catalog.get(name).is_none());
        let unknown = unknown.map(|(setting, name)| {
            let hint = self
                .catalog
                .closest_name(name)
                .map(|name| format!(", did you mean `{name}`?"));
            format!(
                "`{setting}.{name}`: unknown provider{}",
                hint.unwrap_or_else(|| format!(
                    "; correct the name, or add the provider with `providers.{name}.base_url`"
                ))
            )
        });
        let open = self.catalog.iter().filter_map(|provider| {
            let base_url = self.keys.base_url(provider).ok()?;
            let open = !base_url.is_secure()
                && !base_url.is_loopback()
                && self.find_key(provider).is_some();
            open.then(|| {
                format!(
                    "the key for `{}` is sent to {base_url} without encryption; use an `https` URL",
                    provider.name
                )
            })
        });
        unknown.chain(open).collect()
    }

    /// Returns the source of a provider's key or login, if it has one. Does not run a key command.
    pub fn key_source(&self, provider: &str) -> Option<KeySource> {
        let provider = self.catalog.get(provider)?;
        let login = || {
            let login = self.usable_login(provider).ok()??;
            Some(KeySource::Login(login.file_path()))
        };
        self.find_key(provider)
            .map(|lookup| lookup.source().clone())
            .or_else(login)
    }

    /// Returns the source of the plain key if bub uses this key for `provider`. A plain key is set without the name
    /// of a provider. Returns `None` if the provider has its own key or the plain key belongs to another provider.
    pub fn plain_key_source(&self, provider: &str) -> Option<KeySource> {
        let provider = self.catalog.get(provider)?;
        match self.keys.find_scoped_key(provider) {
            Ok(None) => Some(self.keys.plain_key(provider)?.source().clone()),
            _ => None,
        }
    }

    /// Returns the name of the provider that the plain key belongs to, or `None` if bub ignores the plain key. A plain
    /// key is set without the name of a provider. The catalog may not have the returned provider.
    ///
    /// The key belongs to the provider of the configured model. Without a model, it belongs to the provider whose key
    /// prefix matches, otherwise to the first provider of the catalog.
    pub fn plain_key_owner(&self) -> Option<String> {
        self.keys.plain_key_owner().map(str::to_owned)
    }

    fn find_provider(&self, id: &ModelId) -> Result<&Provider, AccessError> {
        self.catalog
            .get(id.provider())
            .ok_or_else(|| AccessError::UnknownProvider {
                name: id.provider().to_owned(),
                suggestion: self.catalog.closest_name(id.provider()).map(str::to_owned),
                config_file: self.settings.config_file().to_owned(),
            })
    }

    /// Encodes a request as the provider of the model would get it, without looking for a key.
    pub fn encode_request(
        &self,
        id: &ModelId,
        request: &ChatRequest,
    ) -> Result<HttpRequest, AccessError> {
        let provider = self.find_provider(id)?;
        let wire = provider.wire_format_at(&self.keys.base_url(provider)?);
        let quirks = provider.quirks();
        let request = ChatRequest {
            model: id.model().to_owned(),
            stream: request.stream && quirks.streaming,
            ..request.clone()
        };
        Ok(wire.encode(&request, &quirks))
    }

    /// Returns which images, recordings and videos all of these models accept. Models that cannot be called do not
    /// count.
    pub fn media_limits(&self, ids: &[ModelId]) -> MediaLimits {
        let limits = ids.iter().filter_map(|id| {
            let provider = self.find_provider(id).ok()?;
            let base_url = self.keys.base_url(provider).ok()?;
            let wire = provider.wire_format_at(&base_url);
            Some(MediaLimits::new(provider.quirks(), wire))
        });
        let limits = limits.reduce(|all, next| all.intersection(&next));
        limits.unwrap_or_default()
    }

    fn plain_endpoint(
        &self,
        provider: &Provider,
        id: &ModelId,
        key: Option<(Secret, KeySource)>,
    ) -> Result<Endpoint, AccessError> {
        let base_url = self.keys.base_url(provider)?;
        let wire = provider.wire_format_at(&base_url);
        let base_url = base_url.for_wire_format(wire);
        if key.is_none() && provider.needs_key && !base_url.is_loopback() {
            return Err(self.missing_key_error(provider));
        }
        let mut headers = provider.headers.clone();
        if self.keys.owns_client_args(provider) {
            headers.splice(..0, self.client_args.headers.iter().cloned());
        }
        let (key, source) = key.unzip();
        if let Some(key) = key {
            let (default, value) = wire.key_header(&key);
            headers.push(match &provider.key_header {
                Some(header) => (header.clone(), key),
                None => (default.to_owned(), value),
            });
        }
        Ok(Endpoint {
            quirks: provider.quirks(),
            headers,
            key: source,
            context_window: provider.context_window(id.model()),
            ..Endpoint::new(id.clone(), wire, base_url)
        })
    }

    fn missing_key_error(&self, provider: &Provider) -> AccessError {
        let name = &provider.name;
        let default = || format!("BUB_{}_API_KEY", name.to_ascii_uppercase());
        let login = self.login(provider);
        let login = login.map(|login| format!(", or run `{}`", login.sign_in_command()));
        AccessError::MissingKey {
            provider: name.clone(),
            variable: provider
                .key_variables
                .first()
                .cloned()
                .unwrap_or_else(default),
            config_file: self.settings.config_file().to_owned(),
            login: login.unwrap_or_default(),
        }
    }
}

/// Completes the endpoint of a login with the configured headers of the provider.
fn login_endpoint(provider: &Provider, mut endpoint: Endpoint, source: KeySource) -> Endpoint {
    endpoint.headers.splice(..0, provider.headers.clone());
    endpoint.key = Some(source);
    endpoint.context_window = provider.context_window(endpoint.id.model());
    endpoint
}

fn login_error(login: &dyn ProviderLogin, error: CredentialError) -> AccessError {
    let provider = login.provider().to_owned();
    let problem = error.text;
    if error.is_temporary {
        return AccessError::LoginUnavailable { provider, problem };
    }
    AccessError::LoginFailed {
        provider,
        problem,
        command: login.sign_in_command(),
    }
}
