//! Models with a fake network, for tests of providers and logins. The feature `testing` enables this module.
#![expect(
    clippy::unwrap_used,
    reason = "a test stops at the first surprise; test code for other crates"
)]

use std::{collections::HashMap, ffi::OsString, ops::Deref, sync::Arc};

use async_trait::async_trait;
use bub_settings::{Section, Settings, SettingsError, testing::SettingsFixture};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    AccessError, Endpoint, LoginFactory, ModelChoice, Models,
    fetch::{Fetch, FetchError, FetchRequest, FetchResponse},
};

/// A [`SettingsFixture`] with a login and a fake network.
pub struct ModelsFixture {
    settings: SettingsFixture,
    login: LoginFactory,
    /// The network of the models and of the login.
    pub network: Arc<FakeNetwork>,
}

impl ModelsFixture {
    /// Creates a fixture in new temporary directories. The settings are those of `sections`.
    pub fn new(sections: impl IntoIterator<Item = Section>, login: LoginFactory) -> Self {
        Self {
            settings: SettingsFixture::new(sections),
            login,
            network: Arc::default(),
        }
    }

    /// Writes a file; see [`SettingsFixture::file`].
    #[must_use]
    pub fn file(self, relative: &str, content: &str) -> Self {
        self.change(|settings| settings.file(relative, content))
    }

    /// Writes the config file.
    #[must_use]
    pub fn config(self, yaml: &str) -> Self {
        self.change(|settings| settings.config(yaml))
    }

    /// Writes the `.env` file of the workspace.
    #[must_use]
    pub fn dotenv(self, text: &str) -> Self {
        self.change(|settings| settings.dotenv(text))
    }

    /// Sets a variable of the environment.
    #[must_use]
    pub fn env(self, name: &str, value: impl Into<OsString>) -> Self {
        self.change(|settings| settings.env(name, value))
    }

    /// Does not trust the workspace; see [`SettingsFixture::untrusted`].
    #[must_use]
    pub fn untrusted(self) -> Self {
        self.change(SettingsFixture::untrusted)
    }

    /// Sets the response to requests for this URL.
    #[must_use]
    pub fn responds(self, url: &str, status: u16, body: &str) -> Self {
        self.network.set(url, status, body);
        self
    }

    /// Returns the settings, which must be valid.
    pub fn settings(&self) -> Arc<Settings> {
        Arc::new(self.load())
    }

    /// Returns the models, or the error in `providers`.
    pub fn try_models(&self) -> Result<Models, SettingsError> {
        Models::new(self.settings(), self.network.clone(), &[self.login])
    }

    /// Returns the models.
    pub fn models(&self) -> Models {
        self.try_models().unwrap()
    }

    /// Returns the endpoint of a model.
    pub async fn endpoint(&self, model: &str) -> Result<Endpoint, AccessError> {
        let models = self.models();
        models.endpoint(&models.resolve_model(model)?).await
    }

    /// Returns the model that is used by default.
    pub async fn choice(&self) -> ModelChoice {
        self.models().choose_model().await.unwrap()
    }

    fn change(mut self, change: impl FnOnce(SettingsFixture) -> SettingsFixture) -> Self {
        self.settings = change(self.settings);
        self
    }
}

impl Deref for ModelsFixture {
    type Target = SettingsFixture;

    fn deref(&self) -> &SettingsFixture {
        &self.settings
    }
}

/// Returns the exposed value of a header.
pub fn header(endpoint: &Endpoint, name: &str) -> Option<String> {
    let header = endpoint.headers.iter().find(|(known, _)| known == name);
    header.map(|(_, value)| value.expose().to_owned())
}

/// A network that returns the configured responses and records all requests. Other URLs refuse the connection.
#[derive(Default)]
pub struct FakeNetwork {
    responses: Mutex<HashMap<String, FetchResponse>>,
    requests: Mutex<Vec<String>>,
    foreign_ports: Mutex<Vec<u16>>,
    gate: Mutex<Option<Arc<Notify>>>,
}

impl FakeNetwork {
    /// Sets the response to requests for this URL.
    pub fn set(&self, url: &str, status: u16, body: &str) {
        let body = body.as_bytes().to_vec();
        let response = FetchResponse { status, body };
        self.responses.lock().insert(url.to_owned(), response);
    }

    /// Declares that a program of another user listens on a port.
    pub fn set_foreign_port(&self, port: u16) {
        self.foreign_ports.lock().push(port);
    }

    /// Delays every response until `gate` is notified.
    pub fn hold(&self, gate: &Arc<Notify>) {
        *self.gate.lock() = Some(Arc::clone(gate));
    }

    /// Returns the recorded requests: the URL, and the form after a space.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }
}

#[async_trait]
impl Fetch for FakeNetwork {
    async fn fetch(&self, request: FetchRequest<'_>) -> Result<FetchResponse, FetchError> {
        let line: Vec<_> = [Some(request.url), request.form]
            .into_iter()
            .flatten()
            .collect();
        self.requests.lock().push(line.join(" "));
        let response = self.responses.lock().get(request.url).cloned();
        let gate = self.gate.lock().clone();
        if let Some(gate) = gate {
            gate.notified().await;
        }
        response.ok_or_else(|| FetchError("connection refused".into()))
    }

    fn is_trusted_listener(&self, port: u16) -> bool {
        !self.foreign_ports.lock().contains(&port)
    }
}
