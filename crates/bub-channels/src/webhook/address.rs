//! Which addresses belong to the public internet.
//!
//! The rules are pure, and the same as those for pages the agent reads; the two crates know nothing of each other,
//! and nothing below them may know of networks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address belongs to the public internet. What is not known to is private.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [first, second, third, _] = address.octets();
    let special = matches!(
        (first, second, third),
        (0 | 10 | 127 | 224.., ..)
        | (100, 64..128, _)
        | (169, 254, _)
        | (172, 16..32, _)
        | (192, 168, _)
        | (198, 18 | 19, _)
        // Protocol assignments, documentation, the relays of 6to4.
        | (192, 0, 0 | 2)
        | (192, 88, 99)
        | (198, 51, 100)
        | (203, 0, 113)
    );
    !special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    if let Some(inner) = address.to_ipv4_mapped() {
        return is_public_v4(inner);
    }
    match address.segments() {
        // The translated form of an IPv4 address (NAT64), which is all that some networks have.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            is_public_v4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
        }
        // Protocol assignments with Teredo, documentation, 6to4: all but the last have no hosts, and tunnels hide where
        // they lead.
        [0x2001, second, ..] if second < 0x200 || second == 0xdb8 => false,
        [0x2002, ..] | [0x3fff, ..=0xfff, ..] => false,
        // Global unicast is the only block in which there are public hosts.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}
