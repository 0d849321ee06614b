//! Decides which addresses may be reached: public ones, and private ones that the setting `web.allow_private` names.

use std::net::IpAddr;

use bub::settings::is_public;
use ipnet::IpNet;

/// Private hosts and networks that may be reached.
#[derive(Debug, Default)]
pub(crate) struct PrivateAllowlist {
    names: Vec<String>,
    networks: Vec<IpNet>,
}

impl PrivateAllowlist {
    /// Parses the list in the setting `web.allow_private`. An invalid item is ignored and logged.
    pub(crate) fn new(entries: &[String]) -> Self {
        let mut allowed = Self::default();
        for entry in entries
            .iter()
            .map(|entry| entry.trim().to_ascii_lowercase())
            .filter(|entry| !entry.is_empty())
        {
            if let Some(network) = parse_network(&entry) {
                allowed.networks.push(network);
            } else if entry.contains(['/', ':', '[']) {
                let hint = "expected a host name or a network, for example 10.1.0.0/16";
                tracing::warn!(%entry, hint, "web.allow_private_ignored");
            } else {
                allowed.names.push(entry);
            }
        }
        allowed
    }

    /// Returns whether the allowlist contains a host name. Such a host may be reached at any address.
    pub(crate) fn is_name_allowed(&self, name: &str) -> bool {
        self.names
            .iter()
            .any(|allowed| match allowed.strip_prefix("*.") {
                Some(domain) => name
                    .strip_suffix(domain)
                    .is_some_and(|rest| rest.ends_with('.')),
                None => allowed == name,
            })
    }

    /// Returns whether an address may be reached.
    pub(crate) fn is_address_allowed(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let is_inside = |network: &IpNet| network.contains(&address);
        is_public(address) || self.networks.iter().any(is_inside)
    }
}

/// Parses a network such as `10.1.0.0/16`, or a single address.
fn parse_network(text: &str) -> Option<IpNet> {
    let address = |text: &str| text.trim_matches(['[', ']']).parse::<IpAddr>().ok();
    match text.split_once('/') {
        Some((network, length)) => IpNet::new(address(network)?, length.parse().ok()?).ok(),
        None => address(text).map(IpNet::from),
    }
}
