//! Finds out whose program listens on a port of this machine.

use std::fs;

/// Returns whether all programs that listen on a TCP port belong to the user of this process or to root.
///
/// Another user of the machine may listen on the port of a model server, to read what bub sends. Outside Linux, bub
/// does not know the owner and returns `true`.
pub(crate) fn is_trusted(port: u16) -> bool {
    if !cfg!(target_os = "linux") {
        return true;
    }
    let read = |name: &str| fs::read_to_string(format!("/proc/{name}")).unwrap_or_default();
    let tables = read("self/net/tcp") + &read("self/net/tcp6");
    let owners: Vec<u32> = listener_owners(&tables, port).collect();
    let user = effective_user(&read("self/status"));
    !owners.is_empty()
        && owners
            .iter()
            .all(|owner| *owner == 0 || Some(*owner) == user)
}

/// Returns the user ids of the sockets that listen on `port`. `tables` has the format of `/proc/net/tcp`.
fn listener_owners(tables: &str, port: u16) -> impl Iterator<Item = u32> {
    /// State of a socket that listens.
    const LISTEN: &str = "0A";
    let port = format!("{port:04X}");
    tables.lines().filter_map(move |line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (address, state) = (fields.next()?, fields.nth(1)?);
        let is_listener = state == LISTEN && address.rsplit(':').next() == Some(port.as_str());
        // A line without a readable owner must not be skipped: it counts as another user.
        let mut owner = || fields.nth(3).and_then(|owner| owner.parse().ok());
        is_listener.then(|| owner().unwrap_or(u32::MAX))
    })
}

/// Returns the effective user id in the text of `/proc/self/status`.
fn effective_user(status: &str) -> Option<u32> {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const TABLES: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:2CAA 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0000000000000000
   1: 0100007F:2CAA 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1001        0 4712 1 0000000000000000
   2: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0000000000000000
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when
   0: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 4714
   1: 00000000000000000000000000000000:04D2 00000000000000000000000000000000:0000 0A";

    #[test]
    fn the_owners_of_a_port_are_those_that_listen_on_it() {
        let owners = |port| listener_owners(TABLES, port).collect::<Vec<_>>();
        assert_eq!(owners(11434), [1000], "a connection does not listen");
        assert_eq!(owners(8080), [0, 1001], "IPv4 and IPv6");
        assert_eq!(owners(1234), [u32::MAX], "an unreadable line");
        assert_eq!(owners(1), [0_u32; 0]);
        assert_eq!(
            effective_user("Name:\tbub\nUid:\t1000\t1001\t1002\t1003\n"),
            Some(1001)
        );
    }

    #[test]
    fn a_listener_of_this_process_is_trusted_and_a_closed_port_is_not() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // The machine may have no IPv6.
            let Ok(listener) = TcpListener::bind(address) else {
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            assert!(is_trusted(port), "{address}");
            drop(listener);
            assert!(!cfg!(target_os = "linux") || !is_trusted(port));
        }
    }
}
