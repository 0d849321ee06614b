//! Simple HTTP requests other than model calls: login tokens and the model lists of local servers.

use std::time::Duration;

use async_trait::async_trait;

use crate::listener;

/// Sends small requests and returns small responses.
///
/// [`ModelClient`](crate::ModelClient) implements it with its HTTP client; tests implement it with fixed responses.
#[async_trait]
pub trait Fetch: Send + Sync {
    /// Sends one request.
    async fn fetch(&self, request: FetchRequest<'_>) -> Result<FetchResponse, FetchError>;

    /// Returns whether the program that listens on a port of this machine belongs to the user or to root.
    fn is_trusted_listener(&self, port: u16) -> bool {
        listener::is_trusted(port)
    }
}

/// One small request.
#[derive(Clone, Copy)]
pub struct FetchRequest<'a> {
    /// The URL.
    pub url: &'a str,
    /// Body of type `application/x-www-form-urlencoded`, sent with POST. Without a body, the request is a GET.
    pub form: Option<&'a str>,
    /// Timeout of the request, response body included.
    pub timeout: Duration,
}

/// A small response with any status.
#[derive(Clone)]
pub struct FetchResponse {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// Error of a request that got no response. The text contains nothing of the request.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct FetchError(pub String);
