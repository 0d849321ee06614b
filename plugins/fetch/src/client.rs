//! The HTTP client of `web.fetch`. It follows redirects itself, so that each target is checked.

use std::{error::Error as _, sync::Arc, time::Duration};

use bub::{
    Error, ErrorKind, Result, Settings,
    model::{HttpOptions, Proxies},
    settings::Redactor,
};
use reqwest::{
    Client, Response, Url,
    header::{ACCEPT, ACCEPT_ENCODING, HeaderMap, HeaderName, HeaderValue, LOCATION},
};
use serde_json::{Map, Value};
use tokio::sync::OnceCell;

use crate::{
    allowlist::PrivateAllowlist,
    page,
    resolve::{HostResolver, PublicResolver, SystemResolver},
    settings::{WEB_ALLOW_PRIVATE, WEB_PROXY},
};

/// The default `accept` header.
const DEFAULT_ACCEPT: &str = "text/markdown, text/html;q=0.9, text/plain;q=0.8, */*;q=0.1";
const MAX_REDIRECTS: usize = 5;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_TIMEOUT: Duration = Duration::from_mins(1);
/// Headers that control the connection and cannot be set by the caller.
const FORBIDDEN_HEADERS: [&str; 10] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "accept-encoding",
    "upgrade",
    "te",
    "trailer",
    "expect",
    "keep-alive",
];

/// Fetches web pages. It creates its HTTP client on first use.
pub struct WebClient {
    options: HttpOptions,
    resolver: Arc<PublicResolver>,
    client: OnceCell<Client>,
    redactor: Redactor,
}

impl WebClient {
    /// Creates a client with the settings `web.proxy` and `web.allow_private`.
    pub fn new(settings: &Settings) -> Self {
        Self::with_resolver(settings, Arc::new(SystemResolver))
    }

    /// Creates a client that resolves host names with `lookup`.
    pub fn with_resolver(settings: &Settings, lookup: Arc<dyn HostResolver>) -> Self {
        let mut options = HttpOptions::from_environment(settings.environment());
        if !settings.get(&WEB_PROXY) {
            options.proxies = Proxies::default();
        }
        let allowed = PrivateAllowlist::new(&settings.get(&WEB_ALLOW_PRIVATE));
        let resolver = PublicResolver::new(allowed, options.proxies.hosts(), lookup);
        Self {
            options,
            resolver: Arc::new(resolver),
            client: OnceCell::new(),
            redactor: settings.redactor().clone(),
        }
    }

    /// Fetches a page as Markdown or plain text. `timeout` is in seconds and covers all redirects; the default is 10
    /// and the maximum is 60.
    pub async fn fetch(
        &self,
        url: &str,
        headers: &Map<String, Value>,
        timeout: Option<f64>,
    ) -> Result<page::FetchedPage> {
        self.fetch_from(url, headers, timeout, &|| {}).await
    }

    /// Fetches a page as [`Self::fetch`] does. Calls `on_contact` as soon as the result can contain text of a server.
    pub(crate) async fn fetch_from(
        &self,
        url: &str,
        headers: &Map<String, Value>,
        timeout: Option<f64>,
        on_contact: &(dyn Fn() + Sync),
    ) -> Result<page::FetchedPage> {
        let url = parse_url(url)?;
        let headers = request_headers(headers)?;
        let timeout = match timeout {
            None => DEFAULT_TIMEOUT,
            Some(seconds) => Duration::try_from_secs_f64(seconds)
                .ok()
                .filter(|timeout| !timeout.is_zero())
                .ok_or_else(|| {
                    Error::invalid_input("invalid `timeout`: expected a number of seconds above 0")
                })?
                .min(MAX_TIMEOUT),
        };
        let timeout_error = |_| {
            tool_error(format!(
                "no complete response from {} within {} s; pass a larger `timeout`",
                host_name(&url),
                timeout.as_secs_f64()
            ))
        };
        let fetched = self.fetch_with_redirects(url.clone(), headers, on_contact);
        tokio::time::timeout(timeout, fetched)
            .await
            .map_err(timeout_error)?
    }

    /// Sends a request and follows redirects.
    async fn fetch_with_redirects(
        &self,
        mut url: Url,
        mut headers: HeaderMap,
        on_contact: &(dyn Fn() + Sync),
    ) -> Result<page::FetchedPage> {
        for _ in 0..=MAX_REDIRECTS {
            self.resolver.check_url(&url).await?;
            let response = self.send_request(&url, &headers, on_contact).await?;
            let Some(next) = redirect_target(&response, &url)? else {
                return page::read_response(response, &url).await;
            };
            if next.origin() != url.origin() {
                // The headers of the caller may contain secrets for the first host.
                let accept = headers.remove(ACCEPT);
                headers = default_headers();
                headers.extend(accept.map(|value| (ACCEPT, value)));
            }
            url = next;
        }
        Err(tool_error(format!(
            "too many redirects: more than {MAX_REDIRECTS}; the last redirect goes to {}",
            host_name(&url)
        )))
    }

    async fn send_request(
        &self,
        url: &Url,
        headers: &HeaderMap,
        on_contact: &(dyn Fn() + Sync),
    ) -> Result<Response> {
        let resolver = Arc::clone(&self.resolver) as _;
        let create = || async { self.options.client_with_resolver(resolver) };
        let client = self.client.get_or_try_init(create).await;
        let client = client.map_err(|error| Error::config(error.to_string()))?;
        let request = client.get(url.clone()).headers(headers.clone());
        let response = request.send().await;
        let is_unreachable = |error: &reqwest::Error| {
            let cause = innermost_cause(error)
                .and_then(<dyn std::error::Error + 'static>::downcast_ref::<std::io::Error>);
            // Other errors, such as those about a certificate, can have text of the server.
            error.is_connect() && cause.is_some_and(|cause| cause.raw_os_error().is_some())
        };
        if !response.as_ref().is_err_and(is_unreachable) {
            on_contact();
        }
        response.map_err(|error| self.request_error(url, &error))
    }

    /// Returns the error for a request that failed. It contains the innermost cause.
    fn request_error(&self, url: &Url, error: &reqwest::Error) -> Error {
        let text = match innermost_cause(error) {
            _ if error.is_timeout() => "connection timed out".to_owned(),
            Some(cause) => cause.to_string(),
            None => error.to_string(),
        };
        let text = self.redactor.redact(&text);
        tool_error(format!("cannot fetch from {}: {text}", host_name(url)))
    }
}

fn innermost_cause(error: &reqwest::Error) -> Option<&(dyn std::error::Error + 'static)> {
    let mut cause = error.source();
    while let Some(deeper) = cause.and_then(std::error::Error::source) {
        cause = Some(deeper);
    }
    cause
}

impl std::fmt::Debug for WebClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WebClient")
    }
}

/// Parses and checks a URL, and removes its fragment.
fn parse_url(text: &str) -> Result<Url> {
    let mut url = Url::parse(text.trim()).map_err(|error| {
        Error::invalid_input(format!("invalid URL `{}`: {error}", truncate(text)))
    })?;
    check_url(&url)?;
    url.set_fragment(None);
    Ok(url)
}

/// Fails if the URL has an unsupported scheme, a user name, a password, or no host.
fn check_url(url: &Url) -> Result<()> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(Error::invalid_input(format!(
            "unsupported URL scheme `{}`: expected http or https",
            truncate(url.scheme())
        )));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Error::invalid_input(
            "invalid URL: it contains a user name or password; use an `authorization` header instead",
        ));
    }
    if host_name(url).is_empty() {
        return Err(Error::invalid_input(
            "invalid URL: it has no host; pass a complete URL",
        ));
    }
    Ok(())
}

/// Returns the target of a redirect, or `None` if the response is not a redirect.
fn redirect_target(response: &Response, url: &Url) -> Result<Option<Url>> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = response.headers().get(LOCATION) else {
        return Ok(None);
    };
    let host = host_name(url);
    let next = std::str::from_utf8(location.as_bytes()).ok();
    let mut next = next
        .and_then(|location| url.join(location).ok())
        .ok_or_else(|| tool_error(format!("{host} redirects to an invalid URL")))?;
    check_url(&next).map_err(|error| {
        let reason = error.message();
        tool_error(format!("{host} redirects to a refused URL: {reason}"))
    })?;
    next.set_fragment(None);
    Ok(Some(next))
}

fn default_headers() -> HeaderMap {
    HeaderMap::from_iter([
        (ACCEPT, HeaderValue::from_static(DEFAULT_ACCEPT)),
        (ACCEPT_ENCODING, HeaderValue::from_static("gzip")),
    ])
}

/// Returns the default headers and the headers of the caller. Fails for headers that cannot be set.
fn request_headers(extra: &Map<String, Value>) -> Result<HeaderMap> {
    let mut headers = default_headers();
    for (name, value) in extra {
        // The value may be a secret, so errors contain only the name of the header.
        let header_error = |reason: &str| {
            Error::invalid_input(format!("invalid header `{}`: {reason}", truncate(name)))
        };
        let lower = name.trim().to_ascii_lowercase();
        if FORBIDDEN_HEADERS.contains(&lower.as_str()) || lower.starts_with("proxy-") {
            return Err(header_error(
                "it controls the connection and cannot be set; omit it",
            ));
        }
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => return Err(header_error("expected a string as its value")),
        };
        let key = HeaderName::from_bytes(lower.as_bytes())
            .map_err(|_| header_error("its name contains characters that are not allowed; use ASCII letters, digits and `-`"))?;
        let value = HeaderValue::from_str(text.trim()).map_err(|_| {
            header_error(
                "its value contains characters that are not allowed; pass one line of ASCII text",
            )
        })?;
        headers.insert(key, value);
    }
    Ok(headers)
}

/// Returns the host of a URL for messages. The rest of a URL may contain secrets.
pub(crate) fn host_name(url: &Url) -> &str {
    url.host_str().unwrap_or_default()
}

/// Returns an error that the model sees as the result of the call.
pub(crate) fn tool_error(text: String) -> Error {
    Error::new(ErrorKind::Tool, text)
}

fn truncate(text: &str) -> String {
    text.chars().take(100).collect()
}
