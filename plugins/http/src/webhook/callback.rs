//! Replies that are posted to a URL of the client's choice, signed, and never into a private network.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bub::kernel::{Error, ErrorKind, MessageId, Result};
use bub::settings::{Secret, is_public};
use reqwest::{
    Client, Response, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    header, redirect,
};
use ring::hmac;
use serde_json::json;
use tokio::sync::OnceCell;

use super::{exchange::ExchangeReply, options::WebhookOptions};

/// The header with the signature of the body: `sha256=` and the HMAC in hexadecimal, its key being the token.
const SIGNATURE_HEADER: &str = "x-bub-signature";

/// Posts replies.
pub(super) struct Callbacks {
    key: Option<hmac::Key>,
    hosts: Arc<[String]>,
    timeout: Duration,
    /// Loading the trust store takes a while, and only `https` needs it.
    plain: OnceCell<Client>,
    secure: OnceCell<Client>,
}

impl Callbacks {
    pub(super) fn new(options: &WebhookOptions) -> Self {
        let sign = |token: &Secret| hmac::Key::new(hmac::HMAC_SHA256, token.expose().as_bytes());
        Self {
            key: options.token.as_ref().map(sign),
            hosts: options.callback_hosts.clone().into(),
            timeout: options.callback_timeout,
            plain: OnceCell::new(),
            secure: OnceCell::new(),
        }
    }

    /// Posts a reply once; the outbox tries again when the error says that it may.
    pub(super) async fn post(
        &self,
        url: &str,
        message_id: Option<&MessageId>,
        reply: &ExchangeReply,
    ) -> Result<()> {
        // The settings may have changed since the message was accepted.
        check(url, &self.hosts).map_err(Error::config)?;
        let url = Url::parse(url)?;
        let body = json!({
            "id": message_id,
            "delivery": reply.reply_id,
            "reply": reply.content(),
            "outbound": reply.value(),
        });
        let body = body.to_string();
        let client = self.client(&url).await?;
        let mut request = client.post(url.clone()).timeout(self.timeout);
        if let Some(key) = &self.key {
            let tag = hmac::sign(key, body.as_bytes());
            request = request.header(SIGNATURE_HEADER, format!("sha256={}", hex(tag.as_ref())));
        }
        let request = request
            .header(header::CONTENT_TYPE, "application/json")
            .header("idempotency-key", reply.reply_id.as_str())
            .body(body);
        classify_response(&url, request.send().await)
    }

    async fn client(&self, url: &Url) -> Result<&Client> {
        let is_secure = url.scheme() == "https";
        let cell = if is_secure { &self.secure } else { &self.plain };
        cell.get_or_try_init(|| async { self.build(is_secure) })
            .await
    }

    fn build(&self, is_secure: bool) -> Result<Client> {
        // An error means that somebody chose a provider before, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .user_agent(concat!("bub/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(self.timeout)
            .pool_max_idle_per_host(8)
            // A redirect would lead where nobody asked for.
            .redirect(redirect::Policy::none())
            .referer(false)
            .no_proxy()
            .dns_resolver(CallbackResolver(Arc::clone(&self.hosts)));
        if !is_secure {
            builder = builder.tls_certs_only([]);
        }
        builder.build().map_err(|error| {
            Error::config(format!("no client for callbacks: {}", innermost(&error)))
        })
    }
}

/// Checks a URL as far as that goes without looking up its name; returns it in its normal form.
pub(super) fn check(url: &str, hosts: &[String]) -> Result<String, String> {
    let url =
        Url::parse(url.trim()).map_err(|error| format!("`callback_url` is no URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("`callback_url` must begin with http: or https:".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            "`callback_url` must not have a user or password in it; callbacks are signed"
                .to_owned(),
        );
    }
    let host = url.host_str().unwrap_or_default();
    let is_private = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(address) => !is_public(address),
        Err(_) => host.trim_end_matches('.').rsplit('.').next() == Some("localhost"),
    };
    if is_private && !is_allowed(hosts, host) {
        return Err(PrivateHostError(host.to_owned()).to_string());
    }
    Ok(url.into())
}

fn is_allowed(hosts: &[String], host: &str) -> bool {
    let plain = |text: &str| {
        text.trim()
            .trim_matches(['[', ']'])
            .trim_end_matches('.')
            .to_ascii_lowercase()
    };
    let host = plain(host);
    hosts.iter().any(|allowed| plain(allowed) == host)
}

/// What an attempt came to.
fn classify_response(url: &Url, sent: reqwest::Result<Response>) -> Result<()> {
    let host = url.host_str().unwrap_or_default();
    let response = match sent {
        Ok(response) => response,
        Err(error) => {
            let cause = innermost(&error);
            let is_refused = cause.downcast_ref::<PrivateHostError>().is_some();
            let kind = if is_refused {
                ErrorKind::Config
            } else {
                ErrorKind::Temporary
            };
            let text = if error.is_timeout() {
                "no answer in time".to_owned()
            } else {
                cause.to_string()
            };
            return Err(Error::new(
                kind,
                format!("the callback to {host} failed: {text}"),
            ));
        }
    };
    let status = response.status();
    if status.is_success() {
        return Ok(());
    }
    let text = format!(
        "the callback to {host} was answered with {}",
        status.as_u16()
    );
    if !(status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429)) {
        return Err(Error::invalid_input(text));
    }
    let error = Error::new(ErrorKind::Temporary, text);
    let delay = response
        .headers()
        .get(header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok());
    Err(match delay {
        Some(seconds) => error.with_retry_after(Duration::from_secs(seconds)),
        None => error,
    })
}

fn innermost<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> &'a (dyn std::error::Error + 'static) {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// Looks up names, and lets through to the public internet and to what is allowed beside it. The connection goes to
/// what was checked, so a name that answers differently the next time gains nothing.
struct CallbackResolver(Arc<[String]>);

impl Resolve for CallbackResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let hosts = Arc::clone(&self.0);
        Box::pin(async move {
            let name = name.as_str();
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name, 0)).await?.collect();
            if !is_allowed(&hosts, name) && !found.iter().all(|address| is_public(address.ip())) {
                return Err(PrivateHostError(name.to_owned()).into());
            }
            let addresses: Addrs = Box::new(found.into_iter());
            Ok(addresses)
        })
    }
}

/// The host is in a private network.
#[derive(Debug)]
struct PrivateHostError(String);

impl fmt::Display for PrivateHostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = &self.0;
        write!(
            f,
            "{host} is in a private network or on this computer; the owner can permit it with the setting `webhook.callback_hosts`"
        )
    }
}

impl std::error::Error for PrivateHostError {}
