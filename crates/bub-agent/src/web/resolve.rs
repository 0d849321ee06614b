//! Names are looked up once, all their addresses are checked, and the connection is made to one of those: a name
//! that answers differently the next time gains nothing.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use bub_kernel::{BoxFuture, Error, ErrorKind, Result};
use reqwest::{
    Url,
    dns::{Addrs, Name, Resolve, Resolving},
};

use super::allowlist::PrivateAllowlist;

/// Names that mean something only in a private network.
const PRIVATE_DOMAINS: [&str; 9] = [
    "localhost",
    "local",
    "internal",
    "intranet",
    "lan",
    "home",
    "corp",
    "private",
    "home.arpa",
];

/// Looks up names.
pub trait HostResolver: Send + Sync {
    /// The addresses of a host.
    fn lookup<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;
}

/// The resolver of the computer.
pub(super) struct SystemResolver;

impl HostResolver for SystemResolver {
    fn lookup<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            Ok(tokio::net::lookup_host((host, 0))
                .await?
                .map(|address| address.ip())
                .collect())
        })
    }
}

/// Lets through to the public internet, and to what is allowed beside it.
#[derive(Clone)]
pub(super) struct PublicResolver {
    allowed: Arc<PrivateAllowlist>,
    /// The hosts of proxies: they are where the user says, private or not.
    proxies: Arc<[String]>,
    lookup: Arc<dyn HostResolver>,
}

impl PublicResolver {
    pub(super) fn new(
        allowed: PrivateAllowlist,
        proxies: Vec<String>,
        lookup: Arc<dyn HostResolver>,
    ) -> Self {
        Self {
            allowed: Arc::new(allowed),
            proxies: proxies.into(),
            lookup,
        }
    }

    /// Checks what can be checked before there is a connection: addresses, and names that a proxy may look up.
    pub(super) async fn check(&self, url: &Url) -> Result<()> {
        let host = url.host_str().unwrap_or_default();
        if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
            // The list may name it as a host as well as by its network.
            return if self.allowed.has_address(address) {
                Ok(())
            } else {
                Err(private_address_error(host))
            };
        }
        if self.proxies.is_empty() {
            // The name is checked when it is looked up.
            return Ok(());
        }
        let name = normal(host);
        match self.addresses(&name).await {
            // Behind a proxy names of the internet are often unknown; what sounds private is refused.
            Err(ResolveError::Unknown(_)) if !looks_private(&name) => Ok(()),
            Err(_) => Err(private_address_error(&name)),
            Ok(_) => Ok(()),
        }
    }

    /// The addresses of a host, all of them allowed.
    async fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let found = self
            .lookup
            .lookup(name)
            .await
            .map_err(ResolveError::Unknown)?;
        if found.is_empty() {
            return Err(ResolveError::Unknown(io::Error::new(
                io::ErrorKind::NotFound,
                "the name has no address",
            )));
        }
        let fits = |address: &IpAddr| self.allowed.has_address(*address);
        // One private address among public ones is no accident.
        if self.allowed.has_name(name) || found.iter().all(fits) {
            Ok(found)
        } else {
            Err(ResolveError::Private)
        }
    }
}

impl Resolve for PublicResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let name = normal(name.as_str());
        let guard = self.clone();
        Box::pin(async move {
            let found = if guard.proxies.contains(&name) {
                guard
                    .lookup
                    .lookup(&name)
                    .await
                    .map_err(ResolveError::Unknown)
            } else {
                guard.addresses(&name).await
            };
            let found = found.map_err(|problem| match problem {
                ResolveError::Private => private_address_error(&name),
                ResolveError::Unknown(error) => Error::new(
                    ErrorKind::Tool,
                    format!("the name cannot be looked up: {error}"),
                ),
            })?;
            let addresses: Addrs =
                Box::new(found.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(addresses)
        })
    }
}

enum ResolveError {
    Private,
    Unknown(io::Error),
}

/// A name as it is compared.
fn normal(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

fn looks_private(name: &str) -> bool {
    let is_in = |domain: &str| {
        name.strip_suffix(domain)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    !name.contains('.') || PRIVATE_DOMAINS.into_iter().any(is_in)
}

/// Says nothing about the address: whoever asks need not know the inside of the network.
fn private_address_error(host: &str) -> Error {
    Error::new(
        ErrorKind::Tool,
        format!(
            "refused: {host} is in a private network or on this computer; the owner can permit it with the setting \
             `web.allow_private`"
        ),
    )
}
