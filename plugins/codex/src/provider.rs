//! The Codex login as seen by model calls: endpoint, headers and deviations from the wire format.

use std::path::PathBuf;
use std::sync::Arc;

use bub::model::fetch::Fetch;
use bub::model::{BaseUrl, Endpoint, ModelId, WireFormat};
use bub::{CredentialError, ProviderLogin, Secret, Settings, async_trait};

use crate::auth::{CodexAuth, OAuthEndpoints};
use crate::jwt;
use crate::settings::CODEX_HOME;

/// The provider that the Codex login belongs to.
pub const PROVIDER: &str = "openai";

/// The model to use if a Codex login exists but no model and no key is configured.
pub const DEFAULT_MODEL: &str = "gpt-6-sol";

/// Base URL of model calls with the Codex login.
const BASE_URL: &str = "https://chatgpt.com/backend-api/codex";

/// How the service for calls with the Codex login deviates from its wire format, as JSON with the fields of `Quirks`.
const QUIRKS: &str = r#"{
    "default_instructions": "You are Codex.",
    "default_body": {"text": {"verbosity": "medium"}},
    "refused_fields": ["max_tokens", "max_output_tokens", "max_completion_tokens", "temperature", "top_p"]
}"#;

/// Returns the Codex login in the directory that the setting `codex_home` names; see [`App::login`](bub::App::login).
pub fn login(settings: &Settings, fetch: Arc<dyn Fetch>) -> Arc<dyn ProviderLogin> {
    let (home, redactor) = (settings.get(&CODEX_HOME), settings.redactor().clone());
    let endpoints = OAuthEndpoints::default();
    Arc::new(CodexAuth::new(&home, endpoints, fetch, redactor))
}

#[async_trait]
impl ProviderLogin for CodexAuth {
    fn provider(&self) -> &str {
        PROVIDER
    }

    fn default_model(&self) -> &str {
        DEFAULT_MODEL
    }

    fn file_path(&self) -> PathBuf {
        self.file.path().to_owned()
    }

    fn has_usable_login(&self) -> Result<bool, CredentialError> {
        self.check_tokens()
    }

    async fn endpoint(&self, model: &ModelId) -> Result<Option<Endpoint>, CredentialError> {
        let tokens = self.valid_tokens().await?;
        Ok(tokens.map(|tokens| {
            codex_endpoint(model, &tokens.access_token, tokens.account_id.as_deref())
        }))
    }

    /// A key that is a token with an account goes to the service for tokens.
    fn endpoint_with_key(&self, model: &ModelId, key: &Secret) -> Option<Endpoint> {
        let account = jwt::account_id(key.expose())?;
        Some(codex_endpoint(model, key, Some(&account)))
    }

    async fn renew(&self, refused: &Endpoint) -> Result<bool, CredentialError> {
        let token = |(_, value): &(String, Secret)| {
            value.expose().strip_prefix("Bearer ").map(Secret::from)
        };
        let Some(old_token) = refused.headers.iter().find_map(token) else {
            return Ok(false);
        };
        let tokens = self.renew_tokens(&old_token).await?;
        Ok(tokens.is_some_and(|tokens| tokens.access_token != old_token))
    }
}

/// Returns the endpoint of a model call with this access token.
fn codex_endpoint(model: &ModelId, token: &Secret, account: Option<&str>) -> Endpoint {
    let base_url = BaseUrl::unchecked(BASE_URL);
    let bearer = Secret::from(format!("Bearer {}", token.expose()));
    let account = account.map(|account| ("chatgpt-account-id", Secret::from(account)));
    let fixed = [
        ("openai-beta", "responses=experimental"),
        ("originator", "bub"),
    ];
    let headers = [("authorization", bearer)].into_iter().chain(account);
    let headers = headers.chain(fixed.map(|(name, value)| (name, Secret::from(value))));
    let headers = headers.map(|(name, value)| (name.to_owned(), value));
    let mut endpoint = Endpoint::new(model.clone(), WireFormat::Responses, base_url);
    endpoint.quirks = serde_json::from_str(QUIRKS).unwrap_or_default();
    endpoint.headers = headers.collect();
    endpoint
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_url_and_the_quirks_are_valid() {
        assert_eq!(BaseUrl::parse(BASE_URL).unwrap().as_str(), BASE_URL);
        serde_json::from_str::<bub::model::Quirks>(QUIRKS).unwrap();
    }
}
