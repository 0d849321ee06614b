//! Resolves host names and checks all their addresses. The connection uses the checked addresses, so a name that
//! resolves differently the next time (DNS rebinding) cannot reach a private address.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use bub::{BoxFuture, Error, Result};
use reqwest::{
    Url,
    dns::{Addrs, Name, Resolve, Resolving},
};

use crate::{allowlist::PrivateAllowlist, client::tool_error};

/// Domains that are used only in private networks.
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

/// A resolver for host names.
pub trait HostResolver: Send + Sync {
    /// Returns the addresses of a host.
    fn lookup<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;
}

/// The resolver of the operating system.
pub(crate) struct SystemResolver;

impl HostResolver for SystemResolver {
    fn lookup<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            let addresses = tokio::net::lookup_host((host, 0)).await?;
            Ok(addresses.map(|address| address.ip()).collect())
        })
    }
}

/// A resolver that returns only public addresses and private ones that the allowlist names.
#[derive(Clone)]
pub(crate) struct PublicResolver {
    allowed: Arc<PrivateAllowlist>,
    /// The hosts of configured proxies. They may be private.
    proxies: Arc<[String]>,
    lookup: Arc<dyn HostResolver>,
}

impl PublicResolver {
    pub(crate) fn new(
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

    /// Fails if the host of a URL is private. Checks IP addresses, and names that a proxy would resolve. Other names
    /// are checked when they are resolved.
    pub(crate) async fn check_url(&self, url: &Url) -> Result<()> {
        let host = url.host_str().unwrap_or_default();
        if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
            // The allowlist can contain single addresses and networks; `is_address_allowed` checks both.
            let is_allowed = self.allowed.is_address_allowed(address);
            return is_allowed
                .then_some(())
                .ok_or_else(|| private_address_error(host));
        }
        if self.proxies.is_empty() {
            // The name is checked when it is resolved.
            return Ok(());
        }
        let name = normalize_host(host);
        match self.allowed_addresses(&name).await {
            // Behind a proxy, public names often cannot be resolved. Refuse names that look private.
            Err(ResolveError::Unknown(_)) if !is_private_name(&name) => Ok(()),
            Err(_) => Err(private_address_error(&name)),
            Ok(_) => Ok(()),
        }
    }

    /// Returns the addresses of a host. Fails if one of them is not allowed.
    async fn allowed_addresses(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let addresses = self.lookup.lookup(name).await?;
        if addresses.is_empty() {
            let error = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
            return Err(error.into());
        }
        let is_allowed = |address: &IpAddr| self.allowed.is_address_allowed(*address);
        // A private address among public ones is probably an attack.
        if self.allowed.is_name_allowed(name) || addresses.iter().all(is_allowed) {
            Ok(addresses)
        } else {
            Err(ResolveError::Private)
        }
    }
}

impl Resolve for PublicResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let name = normalize_host(name.as_str());
        let resolver = self.clone();
        Box::pin(async move {
            let result = if resolver.proxies.contains(&name) {
                resolver.lookup.lookup(&name).await.map_err(Into::into)
            } else {
                resolver.allowed_addresses(&name).await
            };
            let result = result.map_err(|problem| match problem {
                ResolveError::Private => private_address_error(&name),
                ResolveError::Unknown(error) => tool_error(format!(
                    "cannot resolve the host name: {error}; check the URL"
                )),
            })?;
            let addresses = result.into_iter();
            let addresses = addresses.map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}

/// Why the addresses of a host cannot be used.
enum ResolveError {
    /// An address is private and not allowed.
    Private,
    /// The name cannot be resolved.
    Unknown(io::Error),
}

impl From<io::Error> for ResolveError {
    fn from(error: io::Error) -> Self {
        Self::Unknown(error)
    }
}

/// Returns a host name in the form used for comparisons: lower case, without a final dot.
fn normalize_host(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// Returns whether a host name belongs to a private network: it has no dot, or a private domain.
fn is_private_name(name: &str) -> bool {
    let is_in_domain = |domain: &str| {
        name.strip_suffix(domain)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    !name.contains('.') || PRIVATE_DOMAINS.into_iter().any(is_in_domain)
}

/// Returns the error for a private host. It does not contain the address, so that it reveals nothing about the network.
fn private_address_error(host: &str) -> Error {
    tool_error(format!(
        "refused: {host} is in a private network or on this machine; the owner can allow it with the setting \
         `web.allow_private`"
    ))
}
