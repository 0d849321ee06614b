//! A fixture with a home, a workspace, an environment and a fake network.
//!
//! The sandbox of `bub-testkit` is for programs; here the settings are loaded in the process, from these variables only.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bub_model::fetch::{Fetch, FetchError, FetchRequest, FetchResponse};
use bub_model::{AccessError, Endpoint, ModelChoice, Models};
use bub_settings::{Environment, Loader, Redactor, Settings, SettingsError, WorkspaceTrust};
use tempfile::TempDir;

use super::login::FakeLogin;

pub(crate) struct ModelsFixture {
    directory: TempDir,
    variables: Vec<(String, String)>,
    is_trusted: bool,
    pub(crate) redactor: Redactor,
    pub(crate) network: Arc<FakeNetwork>,
}

impl ModelsFixture {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("user/.bub")).unwrap();
        fs::create_dir(directory.path().join("work")).unwrap();
        let home = directory.path().join("user").display().to_string();
        Self {
            directory,
            variables: vec![("HOME".into(), home)],
            is_trusted: true,
            redactor: Redactor::new(),
            network: Arc::default(),
        }
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.directory.path().join(relative)
    }

    pub(crate) fn file(self, relative: &str, content: &str) -> Self {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    pub(crate) fn config(self, yaml: &str) -> Self {
        self.file("user/.bub/config.yml", yaml)
    }

    pub(crate) fn dotenv(self, text: &str) -> Self {
        self.file("work/.env", text)
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Does not trust the workspace. By default, it is trusted.
    pub(crate) fn untrusted(mut self) -> Self {
        self.is_trusted = false;
        self
    }

    /// Sets the response to requests for this URL.
    pub(crate) fn responds(self, url: &str, status: u16, body: &str) -> Self {
        self.network.set(url, status, body);
        self
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        let environment = Environment::from_pairs(self.variables.clone());
        let workspace = self.path("work");
        let trust = WorkspaceTrust::new(&environment, Some(&workspace));
        let mut report = trust.inspect(&workspace);
        if !report.items.is_empty() {
            trust.remember(&mut report, self.is_trusted).unwrap();
        }
        let loader = Loader::new(environment)
            .workspace(trust, report)
            .redactor(&self.redactor)
            .sections(bub_model::settings::sections());
        Arc::new(loader.load().unwrap())
    }

    pub(crate) fn try_models(&self) -> Result<Models, SettingsError> {
        Models::new(self.settings(), self.network.clone(), &[FakeLogin::open])
    }

    pub(crate) fn models(&self) -> Models {
        self.try_models().unwrap()
    }

    pub(crate) async fn endpoint(&self, model: &str) -> Result<Endpoint, AccessError> {
        let models = self.models();
        models.endpoint(&models.resolve_model(model)?).await
    }

    pub(crate) async fn choice(&self) -> ModelChoice {
        self.models().choose_model().await.unwrap()
    }

    /// Returns an error without the path of the temporary directory. Checks that it is one line.
    pub(crate) fn shorten(&self, text: impl ToString) -> String {
        let text = text.to_string();
        assert!(!text.contains('\n'), "more than one line: {text:?}");
        text.replace(&format!("{}/", self.directory.path().display()), "")
    }
}

/// Returns the exposed value of a header.
pub(crate) fn header(endpoint: &Endpoint, name: &str) -> Option<String> {
    let header = endpoint.headers.iter().find(|(known, _)| known == name);
    header.map(|(_, value)| value.expose().to_owned())
}

/// A network that returns the configured responses and records all requests.
#[derive(Default)]
pub(crate) struct FakeNetwork {
    responses: Mutex<HashMap<String, FetchResponse>>,
    requests: Mutex<Vec<String>>,
    foreign_ports: Mutex<Vec<u16>>,
}

impl FakeNetwork {
    /// Declares that a program of another user listens on a port.
    pub(crate) fn set_foreign_port(&self, port: u16) {
        self.foreign_ports.lock().unwrap().push(port);
    }

    pub(crate) fn set(&self, url: &str, status: u16, body: &str) {
        let response = FetchResponse {
            status,
            body: body.as_bytes().to_vec(),
        };
        self.responses
            .lock()
            .unwrap()
            .insert(url.to_owned(), response);
    }

    /// Returns the recorded requests: the URL, and the form after a space.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

#[async_trait]
impl Fetch for FakeNetwork {
    async fn fetch(&self, request: FetchRequest<'_>) -> Result<FetchResponse, FetchError> {
        let line = [Some(request.url), request.form]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(" ");
        self.requests.lock().unwrap().push(line);
        let response = self.responses.lock().unwrap().get(request.url).cloned();
        response.ok_or_else(|| FetchError("connection refused".into()))
    }

    fn is_trusted_listener(&self, port: u16) -> bool {
        !self.foreign_ports.lock().unwrap().contains(&port)
    }
}
