//! Requests other than model calls, sent with the HTTP client of [`ModelClient`].

use async_trait::async_trait;
use reqwest::Url;
use reqwest::header::CONTENT_TYPE;
use tokio::time::timeout;

use super::attempt::read_body_limited;
use super::{ModelClient, innermost_cause};
use crate::fetch::{Fetch, FetchError, FetchRequest, FetchResponse};

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
    fn fetch_error(&self, error: &reqwest::Error) -> FetchError {
        let text = if error.is_timeout() {
            "connection timed out".to_owned()
        } else {
            innermost_cause(error)
        };
        FetchError(self.inner.redactor.redact(&text).into_owned())
    }
}
