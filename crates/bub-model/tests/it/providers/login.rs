//! Tests of the contract for logins, with a login as a plugin would provide it.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bub_model::fetch::Fetch;
use bub_model::{
    BaseUrl, ChoiceReason, CredentialError, Endpoint, KeySource, ModelError, ModelErrorKind,
    ModelId, Models, ProviderLogin, RecoveryAction, WireFormat,
};
use bub_settings::{Secret, Settings};

use super::fixture::{ModelsFixture, header, models_fixture};

const LOGIN_URL: &str = "https://login.example/v1";

/// A login for the provider `openai`. Its file contains a token, or `broken` or `busy` for an error.
pub(crate) struct FakeLogin {
    file: PathBuf,
}

impl FakeLogin {
    pub(crate) fn open(settings: &Settings, _fetch: Arc<dyn Fetch>) -> Arc<dyn ProviderLogin> {
        Arc::new(Self {
            file: settings.home().join("login"),
        })
    }

    fn token(&self) -> Option<String> {
        fs::read_to_string(&self.file).ok()
    }
}

#[async_trait]
impl ProviderLogin for FakeLogin {
    fn provider(&self) -> &'static str {
        "openai"
    }

    fn default_model(&self) -> &'static str {
        "model-of-login"
    }

    fn file_path(&self) -> PathBuf {
        self.file.clone()
    }

    fn has_usable_login(&self) -> Result<bool, CredentialError> {
        match self.token().as_deref() {
            Some("broken") => Err("the file is broken".to_owned().into()),
            token => Ok(token.is_some()),
        }
    }

    async fn endpoint(&self, model: &ModelId) -> Result<Option<Endpoint>, CredentialError> {
        self.has_usable_login()?;
        let Some(token) = self.token() else {
            return Ok(None);
        };
        if token == "busy" {
            return Err(CredentialError::temporary("the server is busy".to_owned()));
        }
        let base_url = BaseUrl::parse(LOGIN_URL).unwrap();
        let endpoint = Endpoint::new(model.clone(), WireFormat::Messages, base_url);
        Ok(Some(endpoint.with_key(&Secret::from(token))))
    }

    async fn renew(&self, refused: &Endpoint) -> Result<bool, CredentialError> {
        let renewed = header(refused, "x-api-key").as_deref() == Some("token-1");
        if renewed {
            fs::write(&self.file, "token-2").unwrap();
        }
        Ok(renewed)
    }
}

fn logged_in(content: &str) -> ModelsFixture {
    models_fixture().file("user/.bub/login", content)
}

async fn endpoint(models: &Models) -> Endpoint {
    let id = models.resolve_model("openai:gpt-9").unwrap();
    models.endpoint(&id).await.unwrap()
}

#[tokio::test]
async fn a_login_decides_about_address_format_and_credentials() {
    let fixture = logged_in("token-1").config("providers: {openai: {headers: {x-team: blue}}}\n");
    let endpoint = endpoint(&fixture.models()).await;
    assert_eq!(endpoint.base_url.as_str(), LOGIN_URL);
    assert_eq!(endpoint.wire, WireFormat::Messages);
    assert_eq!(header(&endpoint, "x-api-key").unwrap(), "token-1");
    assert_eq!(header(&endpoint, "x-team").unwrap(), "blue");
    let file = fixture.path("user/.bub/login");
    assert_eq!(endpoint.key, Some(KeySource::Login(file.clone())));
    assert_eq!(
        endpoint.sign_in_command.as_deref(),
        Some("bub login openai")
    );
    let choice = fixture.choice().await;
    assert_eq!(choice.model.unwrap().to_string(), "openai:model-of-login");
    assert_eq!(choice.reason, ChoiceReason::Login(file));
}

// H-95: every key outranks a login, and credentials go only to the base URL of the login.
#[tokio::test]
async fn a_login_is_not_used_with_a_key_or_another_address() {
    let fixture = logged_in("token-1").env("OPENAI_API_KEY", "own-key-1");
    let endpoint = endpoint(&fixture.models()).await;
    assert_eq!(
        header(&endpoint, "authorization").unwrap(),
        "Bearer own-key-1"
    );
    for yaml in [
        "api_base: {openai: 'https://proxy.example/v1'}\n",
        "providers: {openai: {base_url: 'https://proxy.example/v1'}}\n",
    ] {
        let fixture = logged_in("token-1").config(yaml);
        assert!(fixture.endpoint("openai:x").await.is_err(), "{yaml}");
        assert_eq!(fixture.choice().await.reason, ChoiceReason::Nothing);
    }
}

#[tokio::test]
async fn refused_credentials_are_renewed_once() {
    let fixture = logged_in("token-1");
    let models = fixture.models();
    let refused = endpoint(&models).await;
    let renewed = models.renew_endpoint(&refused).await.unwrap().unwrap();
    assert_eq!(header(&renewed, "x-api-key").unwrap(), "token-2");
    assert!(models.renew_endpoint(&renewed).await.unwrap().is_none());
}

#[tokio::test]
async fn an_error_of_a_login_says_whether_to_sign_in_again() {
    let error = logged_in("broken").endpoint("openai:x").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the login for `openai` cannot be used: the file is broken; run `bub login openai`"
    );
    let error = ModelError::from(error);
    assert_eq!(error.action, RecoveryAction::Reauthenticate);
    let error = logged_in("busy").endpoint("openai:x").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the login for `openai` cannot be refreshed: the server is busy; try again later"
    );
    assert_eq!(ModelError::from(error).kind, ModelErrorKind::Transport);
}
