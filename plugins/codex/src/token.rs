//! The token endpoint: exchanges a code or a refresh token for new tokens.

use std::time::Duration;

use bub::model::fetch::{Fetch, FetchRequest, FetchResponse};
use bub::model::short_message;
use bub::settings::Redactor;
use bub::{CredentialError, Secret};
use form_urlencoded::Serializer;
use serde::Deserialize;

use crate::jwt;

/// The OAuth client id of the Codex CLI, which bub also uses.
pub(crate) const CLIENT_ID: &str = "app_EMoamEEZ73f0CkXaXp7hrann";

const TOKEN_TIMEOUT: Duration = Duration::from_secs(15);

/// Tokens that the token endpoint granted.
pub(crate) struct TokenGrant {
    pub(crate) access_token: Secret,
    pub(crate) refresh_token: Option<Secret>,
    pub(crate) id_token: Option<Secret>,
    pub(crate) expires_in: Option<i64>,
}

impl TokenGrant {
    pub(crate) fn register_secrets(&self, redactor: &Redactor) {
        let others = [&self.refresh_token, &self.id_token].into_iter().flatten();
        others
            .chain([&self.access_token])
            .for_each(|token| redactor.register(token));
    }

    pub(crate) fn account_id(&self) -> Option<String> {
        let id_token = || jwt::account_id(self.id_token.as_ref()?.expose());
        jwt::account_id(self.access_token.expose()).or_else(id_token)
    }
}

#[derive(Deserialize)]
struct TokenResponse {
    access_token: String,
    refresh_token: Option<String>,
    id_token: Option<String>,
    expires_in: Option<f64>,
}

#[derive(Deserialize)]
struct TokenErrorResponse {
    error: serde_json::Value,
    error_description: Option<String>,
}

/// Requests tokens from the token endpoint. `grant` has the fields that name what is exchanged for tokens: a refresh
/// token, or the code of a sign-in. Error texts have one line and contain nothing of the request.
pub(crate) async fn request_tokens(
    fetch: &dyn Fetch,
    url: &str,
    grant: &[(&str, &str)],
) -> Result<TokenGrant, CredentialError> {
    let form = Serializer::new(String::new())
        .append_pair("client_id", CLIENT_ID)
        .extend_pairs(grant)
        .finish();
    let request = FetchRequest {
        url,
        form: Some(&form),
        timeout: TOKEN_TIMEOUT,
    };
    let unreachable_error =
        |error| CredentialError::temporary(format!("the token endpoint did not respond: {error}"));
    parse_response(&fetch.fetch(request).await.map_err(unreachable_error)?)
}

/// Parses a response of the token endpoint.
pub(crate) fn parse_response(response: &FetchResponse) -> Result<TokenGrant, CredentialError> {
    if !(200..300).contains(&response.status) {
        let text = error_text(response.status, &response.body);
        let is_temporary = response.status >= 500 || matches!(response.status, 408 | 429);
        return Err(CredentialError { text, is_temporary });
    }
    // Omit the parser's message: it could quote a token.
    let tokens: TokenResponse = serde_json::from_slice(&response.body)
        .map_err(|_| "the token endpoint returned no tokens".to_owned())?;
    let secret = |token: Option<String>| token.filter(|token| !token.is_empty()).map(Secret::from);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "fractions of a second do not matter"
    )]
    let expires_in = tokens.expires_in.map(|seconds| seconds as i64);
    Ok(TokenGrant {
        access_token: Secret::from(tokens.access_token),
        refresh_token: secret(tokens.refresh_token),
        id_token: secret(tokens.id_token),
        expires_in,
    })
}

/// Returns an error text with the standard fields of the response and nothing else of its body.
fn error_text(status: u16, body: &[u8]) -> String {
    let response = serde_json::from_slice::<TokenErrorResponse>(body).ok();
    let message = response.and_then(
        |TokenErrorResponse {
             error,
             error_description,
         }| {
            let nested = error.get("message").or_else(|| error.get("code"));
            let nested = nested.unwrap_or(&error).as_str().map(str::to_owned);
            error_description.or(nested)
        },
    );
    let message = message.map(|text| format!(": {}", short_message(&text)));
    let message = message.unwrap_or_default();
    let outcome = if status >= 500 {
        "failed"
    } else {
        "rejected the request"
    };
    format!("the token endpoint {outcome} (HTTP {status}){message}")
}
