//! A fixture with a home, a workspace, an environment and a fake network.
//!
//! The tests of `bub-model` have a similar one. `bub-testkit` is below both and knows neither settings nor models.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bub::model::fetch::{Fetch, FetchError, FetchRequest, FetchResponse};
use bub::model::{AccessError, Endpoint, ModelChoice, Models};
use bub::settings::{Environment, Loader, Redactor, Settings};
use bub::{LoginFactory, async_trait, core_sections};
use bub_codex::settings::CODEX_HOME;
use bub_codex::{CodexAuth, OAuthEndpoints};
use tempfile::TempDir;
use tokio::sync::Notify;

pub(crate) struct CodexFixture {
    directory: TempDir,
    variables: Vec<(String, String)>,
    pub(crate) redactor: Redactor,
    pub(crate) network: Arc<FakeNetwork>,
}

impl CodexFixture {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("user/.bub")).unwrap();
        fs::create_dir(directory.path().join("work")).unwrap();
        let home = directory.path().join("user").display().to_string();
        Self {
            directory,
            variables: vec![("HOME".into(), home)],
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

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the response to requests for this URL.
    pub(crate) fn responds(self, url: &str, status: u16, body: &str) -> Self {
        self.network.set(url, status, body);
        self
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        let loader = Loader::new(Environment::from_pairs(self.variables.clone()))
            .redactor(&self.redactor)
            .sections(core_sections())
            .section(bub_codex::settings::section());
        Arc::new(loader.load().unwrap())
    }

    pub(crate) fn models(&self) -> Models {
        let login: LoginFactory = |settings, fetch| Arc::new(open_login(settings, fetch));
        Models::new(self.settings(), self.network.clone(), &[login]).unwrap()
    }

    /// Returns the stored login, with the sign-in server of the tests.
    pub(crate) fn codex(&self) -> CodexAuth {
        open_login(&self.settings(), self.network.clone())
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

fn open_login(settings: &Settings, fetch: Arc<dyn Fetch>) -> CodexAuth {
    let endpoints = OAuthEndpoints {
        callback_port: 0,
        ..OAuthEndpoints::with_issuer("http://issuer.test")
    };
    let (home, redactor) = (settings.get(&CODEX_HOME), settings.redactor().clone());
    CodexAuth::new(&home, endpoints, fetch, redactor)
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
    gate: Mutex<Option<Arc<Notify>>>,
}

impl FakeNetwork {
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

    /// Delays every response until `gate` is notified.
    pub(crate) fn hold(&self, gate: &Arc<Notify>) {
        *self.gate.lock().unwrap() = Some(Arc::clone(gate));
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
        let gate = self.gate.lock().unwrap().clone();
        if let Some(gate) = gate {
            gate.notified().await;
        }
        response.ok_or_else(|| FetchError("connection refused".into()))
    }
}
