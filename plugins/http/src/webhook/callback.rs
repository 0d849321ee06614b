//! Posts signed replies to callback URLs, but not into private networks unless the owner allows it.

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

/// Header with the signature of the body: `sha256=` and the hexadecimal HMAC, with the token as key.
const SIGNATURE_HEADER: &str = "x-bub-signature";

/// Posts replies to callback URLs.
pub(super) struct Callbacks {
    key: Option<hmac::Key>,
    hosts: Arc<[String]>,
    timeout: Duration,
    /// Client for `http`. Only `https` needs the root certificates, which take time to load.
    plain: OnceCell<Client>,
    secure: OnceCell<Client>,
}

impl Callbacks {
    pub(super) fn new(options: &WebhookOptions) -> Self {
        let signing_key =
            |token: &Secret| hmac::Key::new(hmac::HMAC_SHA256, token.expose().as_bytes());
        Self {
            key: options.token.as_ref().map(signing_key),
            hosts: options.callback_hosts.clone().into(),
            timeout: options.callback_timeout,
            plain: OnceCell::new(),
            secure: OnceCell::new(),
        }
    }

    /// Posts a reply once. After a temporary error, the outbox calls this function again.
    pub(super) async fn post_reply(
        &self,
        url: &str,
        message_id: Option<&MessageId>,
        reply: &ExchangeReply,
    ) -> Result<()> {
        // The settings may have changed since the message was accepted.
        check_url(url, &self.hosts).map_err(Error::config)?;
        let url = Url::parse(url)?;
        let body = json!({
            "id": message_id,
            "delivery": reply.reply_id,
            "reply": reply.content(),
            "outbound": reply.value(),
        });
        let body = body.to_string();
        let client = self.client_for(&url).await?;
        let mut request = client.post(url.clone()).timeout(self.timeout);
        if let Some(key) = &self.key {
            let tag = hmac::sign(key, body.as_bytes());
            request = request.header(
                SIGNATURE_HEADER,
                format!("sha256={}", encode_hex(tag.as_ref())),
            );
        }
        let request = request
            .header(header::CONTENT_TYPE, "application/json")
            .header("idempotency-key", reply.reply_id.as_str())
            .body(body);
        classify_response(&url, request.send().await)
    }

    async fn client_for(&self, url: &Url) -> Result<&Client> {
        let is_secure = url.scheme() == "https";
        let cell = if is_secure { &self.secure } else { &self.plain };
        cell.get_or_try_init(|| async { self.build_client(is_secure) })
            .await
    }

    fn build_client(&self, is_secure: bool) -> Result<Client> {
        // Ignore the result: this fails only if a TLS crypto provider is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .user_agent(concat!("bub/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(self.timeout)
            .pool_max_idle_per_host(8)
            // A redirect could lead to a URL that was not checked.
            .redirect(redirect::Policy::none())
            .referer(false)
            .no_proxy()
            .dns_resolver(CallbackResolver(Arc::clone(&self.hosts)));
        if !is_secure {
            builder = builder.tls_certs_only([]);
        }
        builder.build().map_err(|error| {
            Error::config(format!(
                "cannot create the HTTP client for callbacks: {}",
                root_cause(&error)
            ))
        })
    }
}

/// Checks a URL without resolving its host name. Returns the normalized URL.
pub(super) fn check_url(url: &str, hosts: &[String]) -> Result<String, String> {
    let url = Url::parse(url.trim()).map_err(|error| format!("invalid `callback_url`: {error}; pass an absolute URL such as https://example.com/callback"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(
            "invalid `callback_url`: expected a URL that begins with `http:` or `https:`"
                .to_owned(),
        );
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            "invalid `callback_url`: remove the user and password; bub signs callbacks instead"
                .to_owned(),
        );
    }
    let host = url.host_str().unwrap_or_default();
    let is_private = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(address) => !is_public(address),
        Err(_) => host.trim_end_matches('.').rsplit('.').next() == Some("localhost"),
    };
    if is_private && !is_allowed_host(hosts, host) {
        return Err(PrivateHostError(host.to_owned()).to_string());
    }
    Ok(url.into())
}

fn is_allowed_host(hosts: &[String], host: &str) -> bool {
    let normalize = |text: &str| {
        text.trim()
            .trim_matches(['[', ']'])
            .trim_end_matches('.')
            .to_ascii_lowercase()
    };
    let host = normalize(host);
    hosts.iter().any(|allowed| normalize(allowed) == host)
}

/// Converts a response into the result of the attempt. Decides whether an error is temporary.
fn classify_response(url: &Url, sent: reqwest::Result<Response>) -> Result<()> {
    let host = url.host_str().unwrap_or_default();
    let response = match sent {
        Ok(response) => response,
        Err(error) => {
            let cause = root_cause(&error);
            let is_refused = cause.downcast_ref::<PrivateHostError>().is_some();
            let kind = if is_refused {
                ErrorKind::Config
            } else {
                ErrorKind::Temporary
            };
            let text = if error.is_timeout() {
                "no response in time".to_owned()
            } else {
                cause.to_string()
            };
            return Err(Error::new(
                kind,
                format!("callback to `{host}` failed: {text}"),
            ));
        }
    };
    let status = response.status();
    if status.is_success() {
        return Ok(());
    }
    let text = format!(
        "callback to `{host}` failed: it responded with status {}",
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

fn root_cause<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> &'a (dyn std::error::Error + 'static) {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause
}

fn encode_hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// Resolves host names. Rejects private addresses, except for allowed hosts. The connection uses the checked addresses,
/// so a name that resolves differently the next time cannot bypass the check.
struct CallbackResolver(Arc<[String]>);

impl Resolve for CallbackResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let hosts = Arc::clone(&self.0);
        Box::pin(async move {
            let name = name.as_str();
            let addresses: Vec<SocketAddr> = tokio::net::lookup_host((name, 0)).await?.collect();
            if !is_allowed_host(&hosts, name)
                && !addresses.iter().all(|address| is_public(address.ip()))
            {
                return Err(PrivateHostError(name.to_owned()).into());
            }
            let addresses: Addrs = Box::new(addresses.into_iter());
            Ok(addresses)
        })
    }
}

/// The error for a host in a private network.
#[derive(Debug)]
struct PrivateHostError(String);

impl fmt::Display for PrivateHostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = &self.0;
        write!(
            f,
            "`{host}` is in a private network or on this machine; the owner can allow it with `webhook.callback_hosts`"
        )
    }
}

impl std::error::Error for PrivateHostError {}
