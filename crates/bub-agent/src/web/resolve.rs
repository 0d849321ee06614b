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

use super::address::Allowed;

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
pub trait Lookup: Send + Sync {
    /// The addresses of a host.
    fn lookup<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;
}

/// The resolver of the computer.
pub(super) struct System;

impl Lookup for System {
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
pub(super) struct Guard {
    allowed: Arc<Allowed>,
    /// The hosts of proxies: they are where the user says, private or not.
    proxies: Arc<[String]>,
    lookup: Arc<dyn Lookup>,
}

impl Guard {
    pub(super) fn new(allowed: Allowed, proxies: Vec<String>, lookup: Arc<dyn Lookup>) -> Self {
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
                Err(refused(host))
            };
        }
        if self.proxies.is_empty() {
            // The name is checked when it is looked up.
            return Ok(());
        }
        let name = normal(host);
        match self.addresses(&name).await {
            // Behind a proxy names of the internet are often unknown; what sounds private is refused.
            Err(Problem::Unknown(_)) if !sounds_private(&name) => Ok(()),
            Err(_) => Err(refused(&name)),
            Ok(_) => Ok(()),
        }
    }

    /// The addresses of a host, all of them allowed.
    async fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, Problem> {
        let found = self.lookup.lookup(name).await.map_err(Problem::Unknown)?;
        if found.is_empty() {
            return Err(Problem::Unknown(io::Error::new(
                io::ErrorKind::NotFound,
                "the name has no address",
            )));
        }
        let fits = |address: &IpAddr| self.allowed.has_address(*address);
        // One private address among public ones is no accident.
        if self.allowed.has_name(name) || found.iter().all(fits) {
            Ok(found)
        } else {
            Err(Problem::Private)
        }
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let name = normal(name.as_str());
        let guard = self.clone();
        Box::pin(async move {
            let found = if guard.proxies.contains(&name) {
                guard.lookup.lookup(&name).await.map_err(Problem::Unknown)
            } else {
                guard.addresses(&name).await
            };
            let found = found.map_err(|problem| match problem {
                Problem::Private => refused(&name),
                Problem::Unknown(error) => Error::new(
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

enum Problem {
    Private,
    Unknown(io::Error),
}

/// A name as it is compared.
fn normal(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

fn sounds_private(name: &str) -> bool {
    let is_in = |domain: &str| {
        name.strip_suffix(domain)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    !name.contains('.') || PRIVATE_DOMAINS.into_iter().any(is_in)
}

/// Says nothing about the address: whoever asks need not know the inside of the network.
fn refused(host: &str) -> Error {
    Error::new(
        ErrorKind::Tool,
        format!(
            "refused: {host} is in a private network or on this computer; the owner can permit it with the setting \
             `web.allow_private`"
        ),
    )
}
