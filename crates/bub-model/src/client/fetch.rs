//! Requests other than model calls, sent with the HTTP client of [`ModelClient`].

use std::time::Duration;

use async_trait::async_trait;
use reqwest::Url;
use reqwest::header::CONTENT_TYPE;
use tokio::time::timeout;

use super::attempt::read_body_limited;
use super::{ModelClient, innermost_cause};
use crate::endpoint::Endpoint;
use crate::fetch::{Fetch, FetchError, FetchRequest, FetchResponse};
use crate::local::parse_models;
use crate::wire::{MESSAGES_VERSION_HEADER, WireFormat};

/// Maximum bytes read of a response. Tokens and lists of models are small.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024;

#[async_trait]
impl Fetch for ModelClient {
    async fn fetch(&self, request: FetchRequest<'_>) -> Result<FetchResponse, FetchError> {
        let url =
            Url::parse(request.url).map_err(|error| FetchError(format!("invalid URL: {error}")))?;
        let client = self.inner.http.client(&url).await;
        let client = client.map_err(|error| FetchError(error.message))?;
        let builder = match request.form {
            Some(form) => client
                .post(url)
                .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
                .body(form.to_owned()),
            None => client.get(url),
        };
        let exchange = async {
            let response = builder.send().await;
            let response = response.map_err(|error| self.fetch_error(&error))?;
            Ok(FetchResponse {
                status: response.status().as_u16(),
                body: read_body_limited(response, MAX_RESPONSE_BYTES, request.timeout).await,
            })
        };
        timeout(request.timeout, exchange)
            .await
            .unwrap_or_else(|_| Err(FetchError("request timed out".to_owned())))
    }
}

impl ModelClient {
    /// Returns the chat models that the server of an endpoint lists, in its order.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer within `wait`, or not with a list of models.
    pub async fn list_models(
        &self,
        endpoint: &Endpoint,
        wait: Duration,
    ) -> Result<Vec<String>, FetchError> {
        let path = match endpoint.wire {
            WireFormat::Messages => "/v1/models",
            _ => "/models",
        };
        let url = Url::parse(&format!("{}{path}", endpoint.base_url))
            .map_err(|error| FetchError(format!("invalid URL: {error}")))?;
        let client = self.inner.http.client(&url).await;
        let mut request = client.map_err(|error| FetchError(error.message))?.get(url);
        for (name, value) in &endpoint.headers {
            request = request.header(name, value.expose());
        }
        if endpoint.wire == WireFormat::Messages {
            let (name, version) = MESSAGES_VERSION_HEADER;
            request = request.header(name, version);
        }
        let exchange = async {
            let response = request.send().await;
            let response = response.map_err(|error| self.fetch_error(&error))?;
            let status = response.status();
            let body = read_body_limited(response, MAX_RESPONSE_BYTES, wait).await;
            let models = Some(body).filter(|_| status.is_success());
            let models = models.and_then(|body| parse_models(&body));
            models.ok_or_else(|| FetchError(format!("no list of models (status {status})")))
        };
        timeout(wait, exchange)
            .await
            .unwrap_or_else(|_| Err(FetchError("request timed out".to_owned())))
    }

    fn fetch_error(&self, error: &reqwest::Error) -> FetchError {
        let text = if error.is_timeout() {
            "connection timed out".to_owned()
        } else {
            innermost_cause(error)
        };
        FetchError(self.inner.redactor.redact(&text).into_owned())
    }
}
