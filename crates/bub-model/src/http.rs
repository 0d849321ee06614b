//! The HTTP client: built on first use, with connection reuse and without redirects.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bub_settings::{Environment, Secret};
use reqwest::dns::Resolve;
use reqwest::{Certificate, Client, ClientBuilder, NoProxy, Proxy, Url, redirect};
use tokio::sync::OnceCell;

use crate::error::{ModelError, Result};

/// Connection options.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HttpOptions {
    /// Timeout for establishing a connection, TLS included. Default: 15 seconds.
    pub connect_timeout: Duration,
    /// How long an unused connection stays open. Default: 90 seconds.
    pub keep_idle: Duration,
    /// Proxies to use.
    pub proxies: Proxies,
    /// File with PEM certificates to trust in addition to those of the system, for example the certificate of a company
    /// proxy. The variable `SSL_CERT_FILE` sets it.
    pub certificates: Option<PathBuf>,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(15),
            keep_idle: Duration::from_secs(90),
            proxies: Proxies::default(),
            certificates: None,
        }
    }
}

impl HttpOptions {
    /// Creates options with the proxies and certificates of the environment.
    pub fn from_environment(environment: &Environment) -> Self {
        let certificates = environment
            .get("SSL_CERT_FILE")
            .filter(|path| !path.is_empty())
            .map(PathBuf::from);
        Self {
            proxies: Proxies::from_environment(environment),
            certificates,
            ..Self::default()
        }
    }
}

/// Proxies by URL scheme. A proxy URL may contain a password, so it is a secret.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    /// Proxy for `http` URLs (`HTTP_PROXY`).
    pub http: Option<Secret>,
    /// Proxy for `https` URLs (`HTTPS_PROXY`).
    pub https: Option<Secret>,
    /// Proxy for URLs whose scheme has no separate proxy (`ALL_PROXY`).
    pub all: Option<Secret>,
    /// Hosts that are reached directly, separated by commas (`NO_PROXY`). Localhost is always reached directly.
    pub direct: String,
}

impl Proxies {
    /// Reads `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, in upper or lower case.
    pub fn from_environment(environment: &Environment) -> Self {
        let text = |name: &str| {
            environment
                .get(name)
                .and_then(|value| value.to_str())
                .map(str::trim)
        };
        let proxy = |name: &str| text(name).filter(|url| !url.is_empty()).map(Secret::from);
        Self {
            http: proxy("HTTP_PROXY"),
            https: proxy("HTTPS_PROXY"),
            all: proxy("ALL_PROXY"),
            direct: text("NO_PROXY").unwrap_or_default().to_owned(),
        }
    }

    /// Returns the hosts of the proxies, in lower case.
    pub fn hosts(&self) -> Vec<String> {
        self.urls()
            .filter_map(|url| {
                parse_proxy_url(url.expose())?
                    .host_str()
                    .map(str::to_lowercase)
            })
            .collect()
    }

    /// Returns the secrets in the URLs: passwords, with and without the user name. Hosts are not secret.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = Secret> {
        let logins = self.urls().filter_map(|url| {
            let (_, address) = url.expose().split_once("://").unwrap_or(("", url.expose()));
            let (login, _) = address.rsplit_once('@')?;
            Some([login, login.split_once(':')?.1])
        });
        logins
            .flatten()
            .filter(|text| !text.is_empty())
            .map(Secret::from)
    }

    fn urls(&self) -> impl Iterator<Item = &Secret> {
        [&self.http, &self.https, &self.all].into_iter().flatten()
    }

    /// Returns host and port of the proxy for a URL, for error messages. Ignores `NO_PROXY`.
    pub(crate) fn host_for(&self, url: &Url) -> Option<String> {
        if is_local(url) {
            return None;
        }
        let by_scheme = if url.scheme() == "https" {
            &self.https
        } else {
            &self.http
        };
        let text = by_scheme.as_ref().or(self.all.as_ref())?.expose();
        let proxy = parse_proxy_url(text)?;
        let port = proxy.port_or_known_default().map(|port| format!(":{port}"));
        Some(format!("{}{}", proxy.host_str()?, port.unwrap_or_default()))
    }

    /// Returns whether any proxy is reached over TLS.
    fn has_tls_proxy(&self) -> bool {
        self.urls().any(|url| url.expose().starts_with("https:"))
    }

    fn build_proxies(&self) -> Result<Vec<Proxy>> {
        let direct = NoProxy::from_string(&format!("localhost,127.0.0.0/8,::1,{}", self.direct));
        let url = |url: &'_ Option<Secret>| url.as_ref().map(|url| url.expose().to_owned());
        let configured = [
            ("HTTP_PROXY", url(&self.http).map(Proxy::http)),
            ("HTTPS_PROXY", url(&self.https).map(Proxy::https)),
            ("ALL_PROXY", url(&self.all).map(Proxy::all)),
        ];
        let configured = configured
            .into_iter()
            .filter_map(|(name, proxy)| Some((name, proxy?)));
        let with_direct = |(name, proxy): (&str, reqwest::Result<Proxy>)| match proxy {
            Ok(proxy) => Ok(proxy.no_proxy(direct.clone())),
            Err(_) => Err(ModelError::setup(format!(
                "invalid proxy in {name}: expected a URL such as `http://host:port`"
            ))),
        };
        configured.map(with_direct).collect()
    }
}

/// Returns whether a URL points to this machine. Such URLs are never accessed through a proxy.
fn is_local(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Parses the URL of a proxy, with or without a scheme.
fn parse_proxy_url(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok().filter(Url::has_host);
    url.or_else(|| Url::parse(&format!("http://{text}")).ok())
}

/// Two HTTP clients, each built on first use. The client for `http` URLs does not load the CA certificates of the
/// system, because this takes milliseconds and a local server does not need them.
pub(crate) struct HttpClient {
    options: HttpOptions,
    plain: OnceCell<Client>,
    secure: OnceCell<Client>,
}

impl HttpClient {
    pub(crate) fn new(options: HttpOptions) -> Self {
        Self {
            options,
            plain: OnceCell::new(),
            secure: OnceCell::new(),
        }
    }

    pub(crate) fn options(&self) -> &HttpOptions {
        &self.options
    }

    /// Returns the client for a URL. Builds the client on first use.
    pub(crate) async fn client(&self, url: &Url) -> Result<&Client> {
        let secure = url.scheme() == "https" || self.options.proxies.has_tls_proxy();
        let options = &self.options;
        let build = || async {
            options.build(if secure {
                options.secure_builder()?
            } else {
                options.client_builder().tls_certs_only([])
            })
        };
        let cell = if secure { &self.secure } else { &self.plain };
        cell.get_or_try_init(build).await
    }
}

impl HttpOptions {
    /// Creates a client for requests other than model calls, with these options and this DNS resolver. The client does
    /// not follow redirects or keep connections open.
    pub fn client_with_resolver(&self, resolver: Arc<dyn Resolve>) -> Result<Client> {
        let builder = self.secure_builder()?.pool_max_idle_per_host(0);
        self.build(builder.dns_resolver(resolver))
    }

    /// Builds a client with the configured proxies.
    fn build(&self, builder: ClientBuilder) -> Result<Client> {
        let proxies = self.proxies.build_proxies()?.into_iter();
        let client = proxies.fold(builder, ClientBuilder::proxy).build();
        client.map_err(|error| {
            let cause = crate::client::innermost_cause(&error);
            ModelError::setup(format!(
                "cannot use TLS: {cause}; install the CA certificates of the system or set SSL_CERT_FILE"
            ))
        })
    }

    /// Returns a builder that trusts the CA certificates of the system and the configured ones.
    fn secure_builder(&self) -> Result<ClientBuilder> {
        let certificates = self.read_certificates()?;
        Ok(self.client_builder().tls_certs_merge(certificates))
    }

    fn client_builder(&self) -> ClientBuilder {
        // Ignore the error: it only means that a crypto provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Client::builder()
            .user_agent(concat!("bub/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(self.connect_timeout)
            .pool_idle_timeout(self.keep_idle)
            // A busy gateway makes many concurrent calls. Unused connections are closed after `keep_idle`.
            .pool_max_idle_per_host(256)
            .tcp_keepalive(Duration::from_secs(30))
            // A redirect would send the conversation, and on the same host also the key, to a URL that the user did
            // not configure.
            .redirect(redirect::Policy::none())
            .referer(false)
            // Ignore proxies in the environment of the process: only bub-settings reads the environment.
            .no_proxy()
    }

    fn read_certificates(&self) -> Result<Vec<Certificate>> {
        let Some(path) = &self.certificates else {
            return Ok(Vec::new());
        };
        let reason = match std::fs::read(path) {
            Ok(pem) => match Certificate::from_pem_bundle(&pem) {
                Ok(certificates) if !certificates.is_empty() => return Ok(certificates),
                _ => {
                    "contains no PEM certificates; set it to a PEM file with CA certificates".into()
                }
            },
            Err(error) => format!("cannot be read: {error}; correct the path or its permissions"),
        };
        let path = path.display();
        Err(ModelError::setup(format!(
            "SSL_CERT_FILE: {path}: {reason}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_proxy_is_named_for_addresses_of_this_machine() {
        let proxies = Proxies {
            all: Some("proxy.example:3128".into()),
            ..Proxies::default()
        };
        let host_for = |url: &str| proxies.host_for(&Url::parse(url).unwrap());
        for near in [
            "http://localhost:1/v1",
            "https://127.0.0.2/v1",
            "http://[::1]:8080/v1",
        ] {
            assert_eq!(host_for(near), None, "{near}");
        }
        assert_eq!(
            host_for("https://far.example/v1").as_deref(),
            Some("proxy.example:3128")
        );
    }
}
