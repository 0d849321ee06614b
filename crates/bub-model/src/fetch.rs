//! The few plain HTTP exchanges beside model calls: tokens of a login, lists of local servers.

use std::time::Duration;

use futures_util::future::BoxFuture;

/// Sends small requests and reads small answers. The seam for tests, and for the one HTTP client.
pub trait Fetch: Send + Sync {
    /// Sends one request.
    fn fetch<'a>(
        &'a self,
        ask: FetchRequest<'a>,
    ) -> BoxFuture<'a, Result<FetchResponse, FetchError>>;
}

/// One small request.
#[derive(Clone, Copy)]
pub struct FetchRequest<'a> {
    /// Where to.
    pub url: &'a str,
    /// A body of type `application/x-www-form-urlencoded`, sent with POST; without one it is a GET.
    pub form: Option<&'a str>,
    /// How long the whole exchange may take.
    pub timeout: Duration,
}

/// A small answer, whatever its status.
#[derive(Clone)]
pub struct FetchResponse {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// No answer came. The text says why, without what was sent.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct FetchError(pub String);
