//! Decides which addresses may be reached: public ones, and private ones that the setting `web.allow_private` names.

use std::net::IpAddr;

use bub_settings::is_public;

/// Private hosts and networks that may be reached.
#[derive(Debug, Default)]
pub(super) struct PrivateAllowlist {
    names: Vec<String>,
    networks: Vec<(IpAddr, u8)>,
}

impl PrivateAllowlist {
    /// Parses the entries of the setting. An invalid entry is ignored and logged.
    pub(super) fn new(entries: &[String]) -> Self {
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

    /// Returns whether a host may be reached at any address.
    pub(super) fn is_name_allowed(&self, name: &str) -> bool {
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
    pub(super) fn is_address_allowed(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        is_public(address)
            || self
                .networks
                .iter()
                .any(|(network, length)| is_in_network(address, *network, *length))
    }
}

/// Parses a network such as `10.1.0.0/16`, or a single address.
fn parse_network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length.parse::<u8>().ok()?)),
        None => (text, None),
    };
    let address: IpAddr = address.trim_matches(['[', ']']).parse().ok()?;
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let length = length.unwrap_or(bits);
    (length <= bits).then_some((address, length))
}

fn is_in_network(address: IpAddr, network: IpAddr, length: u8) -> bool {
    let has_same_prefix = |left: u128, right: u128, bits: u8| {
        let rest = u32::from(bits - length.min(bits));
        left.checked_shr(rest).unwrap_or(0) == right.checked_shr(rest).unwrap_or(0)
    };
    match (address, network) {
        (IpAddr::V4(left), IpAddr::V4(right)) => {
            has_same_prefix(u32::from(left).into(), u32::from(right).into(), 32)
        }
        (IpAddr::V6(left), IpAddr::V6(right)) => has_same_prefix(left.into(), right.into(), 128),
        _ => false,
    }
}
