//! Reading pages of the web, and nothing but the web: the service behind `web.fetch`.
//!
//! * `address`: which addresses are private, and which of them are allowed.
//! * `resolve`: names are looked up once and checked; the connection goes to what was checked.
//! * `page`: what of an answer is read, and as which text; `html` and `markdown` make a page readable.
//!
//! Redirects are followed here, so that every step is checked like the first.

mod allowlist;
mod html;
mod markdown;
mod page;
mod resolve;

use std::{error::Error as _, sync::Arc, time::Duration};

use bub_kernel::{Error, ErrorKind, Result};
use bub_model::HttpOptions;
use bub_settings::{Redactor, Settings};
use reqwest::{
    Client, Response, Url,
    header::{ACCEPT, ACCEPT_ENCODING, HeaderMap, HeaderName, HeaderValue, LOCATION},
};
use serde_json::{Map, Value};
use tokio::sync::OnceCell;

#[doc(hidden)]
pub use self::page::text_of;
use self::resolve::{PublicResolver, SystemResolver};
pub use self::{markdown::from_html, resolve::HostResolver};
use crate::settings::{WEB_ALLOW_PRIVATE, WEB_PROXY};

/// What is asked for unless the caller asks for something else.
const DEFAULT_ACCEPT: &str = "text/markdown, text/html;q=0.9, text/plain;q=0.8, */*;q=0.1";
const MAX_REDIRECTS: usize = 5;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_TIMEOUT: Duration = Duration::from_mins(1);
/// Headers that belong to the connection, not to whoever asks.
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

/// Reads pages. The client is made at the first use.
pub struct WebClient {
    options: HttpOptions,
    guard: Arc<PublicResolver>,
    client: OnceCell<Client>,
    redactor: Redactor,
}

impl WebClient {
    /// As the settings say.
    pub fn new(settings: &Settings) -> Self {
        Self::with_lookup(settings, Arc::new(SystemResolver))
    }

    /// The same, with another way to look up names.
    pub fn with_lookup(settings: &Settings, lookup: Arc<dyn HostResolver>) -> Self {
        let mut options = HttpOptions::from_environment(settings.environment());
        if !settings.get(&WEB_PROXY) {
            options.proxies = bub_model::Proxies::default();
        }
        let allowed = allowlist::PrivateAllowlist::new(&settings.get(&WEB_ALLOW_PRIVATE));
        let guard = Arc::new(PublicResolver::new(
            allowed,
            options.proxies.hosts(),
            lookup,
        ));
        Self {
            options,
            guard,
            client: OnceCell::new(),
            redactor: settings.redactor().clone(),
        }
    }

    /// Reads a page. `timeout` is in seconds and for everything together.
    pub async fn fetch(
        &self,
        url: &str,
        headers: &Map<String, Value>,
        timeout: Option<f64>,
    ) -> Result<String> {
        let url = parse(url)?;
        let headers = own_headers(headers)?;
        let timeout = match timeout {
            None => DEFAULT_TIMEOUT,
            Some(seconds) => Duration::try_from_secs_f64(seconds)
                .ok()
                .filter(|timeout| !timeout.is_zero())
                .ok_or_else(|| {
                    Error::invalid_input("`timeout` must be a number of seconds above 0")
                })?
                .min(MAX_TIMEOUT),
        };
        let late = |_| {
            let text = format!(
                "no complete answer from {} within {} s",
                host(&url),
                timeout.as_secs_f64()
            );
            Error::new(ErrorKind::Tool, text)
        };
        tokio::time::timeout(timeout, self.follow(url.clone(), headers))
            .await
            .map_err(late)?
    }

    /// Asks, and asks again where the answer says that it is elsewhere.
    async fn follow(&self, mut url: Url, mut headers: HeaderMap) -> Result<String> {
        for _ in 0..=MAX_REDIRECTS {
            self.guard.check(&url).await?;
            let response = self.ask(&url, &headers).await?;
            let Some(next) = target(&response, &url)? else {
                return page::read(response, &url).await;
            };
            if next.origin() != url.origin() {
                // What was meant for one host is not for another.
                headers.retain_only(&ACCEPT);
            }
            url = next;
        }
        Err(Error::new(
            ErrorKind::Tool,
            format!(
                "more than {MAX_REDIRECTS} redirects, the last to {}",
                host(&url)
            ),
        ))
    }

    async fn ask(&self, url: &Url, headers: &HeaderMap) -> Result<Response> {
        let make = || async { self.options.client_with(Arc::clone(&self.guard) as _) };
        let client = self.client.get_or_try_init(make).await;
        let client = client.map_err(|error| Error::config(error.to_string()))?;
        let request = client.get(url.clone()).headers(headers.clone());
        request
            .send()
            .await
            .map_err(|error| self.failure(url, &error))
    }

    fn failure(&self, url: &Url, error: &reqwest::Error) -> Error {
        let mut cause = error.source();
        while let Some(deeper) = cause.and_then(std::error::Error::source) {
            cause = Some(deeper);
        }
        let text = cause.map_or_else(|| error.to_string(), ToString::to_string);
        let text = if error.is_timeout() {
            "no connection in time".to_owned()
        } else {
            text
        };
        let text = self.redactor.redact(&text).into_owned();
        Error::new(
            ErrorKind::Tool,
            format!("cannot read from {}: {text}", host(url)),
        )
    }
}

impl std::fmt::Debug for WebClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WebClient")
    }
}

trait HeaderMapExt {
    fn retain_only(&mut self, kept: &HeaderName);
}

impl HeaderMapExt for HeaderMap {
    fn retain_only(&mut self, kept: &HeaderName) {
        let value = self.remove(kept);
        self.clear();
        self.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        self.extend(value.map(|value| (kept.clone(), value)));
    }
}

/// A URL that may be asked for, without what is only for browsers.
fn parse(text: &str) -> Result<Url> {
    let mut url = Url::parse(text.trim()).map_err(|error| {
        Error::invalid_input(format!("`{}` is no URL: {error}", shortened(text)))
    })?;
    acceptable(&url)?;
    url.set_fragment(None);
    Ok(url)
}

fn acceptable(url: &Url) -> Result<()> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(Error::invalid_input(format!(
            "web.fetch reads http and https only, not `{}`",
            shortened(url.scheme())
        )));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Error::invalid_input(
            "a URL with a user or password in it is not fetched; use an `authorization` header",
        ));
    }
    if host(url).is_empty() {
        return Err(Error::invalid_input("the URL has no host"));
    }
    Ok(())
}

/// Where a redirect leads; `None` for an answer that is none.
fn target(response: &Response, url: &Url) -> Result<Option<Url>> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = response.headers().get(LOCATION) else {
        return Ok(None);
    };
    let wrong = || {
        Error::new(
            ErrorKind::Tool,
            format!("{} redirects to what is no URL", host(url)),
        )
    };
    let text = std::str::from_utf8(location.as_bytes()).map_err(|_| wrong())?;
    let mut next = url.join(text).map_err(|_| wrong())?;
    acceptable(&next).map_err(|error| {
        Error::new(
            ErrorKind::Tool,
            format!(
                "{} redirects to a refused URL: {}",
                host(url),
                error.message()
            ),
        )
    })?;
    next.set_fragment(None);
    Ok(Some(next))
}

fn own_headers(given: &Map<String, Value>) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static(DEFAULT_ACCEPT));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
    for (name, value) in given {
        // The value may be a secret: errors name the header only.
        let wrong =
            |what: &str| Error::invalid_input(format!("header `{}`: {what}", shortened(name)));
        let lower = name.trim().to_ascii_lowercase();
        if FORBIDDEN_HEADERS.contains(&lower.as_str()) || lower.starts_with("proxy-") {
            return Err(wrong("it belongs to the connection and cannot be set"));
        }
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => return Err(wrong("its value must be a text")),
        };
        let key = HeaderName::from_bytes(lower.as_bytes())
            .map_err(|_| wrong("no header is called that"))?;
        let value =
            HeaderValue::from_str(text.trim()).map_err(|_| wrong("its value cannot be sent"))?;
        headers.insert(key, value);
    }
    Ok(headers)
}

/// The host of a URL, for messages: never the rest, which may hold a secret.
fn host(url: &Url) -> &str {
    url.host_str().unwrap_or_default()
}

fn shortened(text: &str) -> String {
    text.chars().take(100).collect()
}
