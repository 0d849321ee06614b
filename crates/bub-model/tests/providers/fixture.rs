//! A home, a workspace, an environment and a network that is a function.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bub_model::codex::OAuthEndpoints;
use bub_model::fetch::{Fetch, FetchError, FetchRequest, FetchResponse};
use bub_model::{AccessError, Endpoint, ModelChoice, Models};
use bub_settings::{Environment, Loader, Redactor, Settings, SettingsError, WorkspaceTrust};
use futures_util::future::BoxFuture;
use tempfile::TempDir;
use tokio::sync::Notify;

pub(crate) struct ModelsFixture {
    directory: TempDir,
    variables: Vec<(String, String)>,
    trust: WorkspaceTrust,
    pub(crate) redactor: Redactor,
    pub(crate) network: Arc<Network>,
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
            trust: WorkspaceTrust::Untrusted,
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

    pub(crate) fn trusted(mut self) -> Self {
        self.trust = WorkspaceTrust::Trusted;
        self
    }

    /// What a GET or POST of this address is answered with.
    pub(crate) fn answers(self, url: &str, status: u16, body: &str) -> Self {
        self.network.set(url, status, body);
        self
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        let loader = Loader::new(Environment::from_pairs(self.variables.clone()))
            .workspace(self.path("work"), self.trust)
            .redactor(&self.redactor)
            .sections(bub_model::settings::sections());
        Arc::new(loader.load().unwrap())
    }

    pub(crate) fn try_models(&self) -> Result<Models, SettingsError> {
        let endpoints = OAuthEndpoints {
            callback_port: 0,
            ..OAuthEndpoints::with_issuer("http://issuer.test")
        };
        Models::with_endpoints(self.settings(), self.network.clone(), endpoints)
    }

    pub(crate) fn models(&self) -> Models {
        self.try_models().unwrap()
    }

    pub(crate) async fn endpoint(&self, model: &str) -> Result<Endpoint, AccessError> {
        let models = self.models();
        models.endpoint(&models.resolve(model)?).await
    }

    pub(crate) async fn choice(&self) -> ModelChoice {
        self.models().choose().await.unwrap()
    }

    /// An error in one line, with the temporary directory cut off.
    pub(crate) fn shorten(&self, text: impl ToString) -> String {
        let text = text.to_string();
        assert!(!text.contains('\n'), "more than one line: {text:?}");
        text.replace(&format!("{}/", self.directory.path().display()), "")
    }
}

/// The value of a header, exposed.
pub(crate) fn header(endpoint: &Endpoint, name: &str) -> Option<String> {
    let found = endpoint.headers.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| value.expose().to_owned())
}

/// A network in which only what a test has set up answers, and everything is remembered.
#[derive(Default)]
pub(crate) struct Network {
    answers: Mutex<HashMap<String, FetchResponse>>,
    asked: Mutex<Vec<String>>,
    gate: Mutex<Option<Arc<Notify>>>,
}

impl Network {
    pub(crate) fn set(&self, url: &str, status: u16, body: &str) {
        let answer = FetchResponse {
            status,
            body: body.as_bytes().to_vec(),
        };
        self.answers.lock().unwrap().insert(url.to_owned(), answer);
    }

    /// Keeps every answer back until it is notified.
    pub(crate) fn hold(&self, gate: &Arc<Notify>) {
        *self.gate.lock().unwrap() = Some(Arc::clone(gate));
    }

    /// What was asked: the address, and the form after a space.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Fetch for Network {
    fn fetch<'a>(
        &'a self,
        ask: FetchRequest<'a>,
    ) -> BoxFuture<'a, Result<FetchResponse, FetchError>> {
        let line = [Some(ask.url), ask.form]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(" ");
        self.asked.lock().unwrap().push(line);
        let answer = self.answers.lock().unwrap().get(ask.url).cloned();
        let gate = self.gate.lock().unwrap().clone();
        Box::pin(async move {
            if let Some(gate) = gate {
                gate.notified().await;
            }
            answer.ok_or_else(|| FetchError("connection refused".into()))
        })
    }
}
