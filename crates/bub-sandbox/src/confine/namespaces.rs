//! Namespaces of a confined command.

use std::{fs, io};

use nix::sched::{CloneFlags, unshare};
use rustix::{
    net::{AddressFamily, SendFlags, SocketType, send, socket},
    process::{getgid, getuid},
    thread::{CapabilitySet, capabilities, configure_capability_in_ambient_set, set_capabilities},
};

/// Capabilities that the first process of the process namespace needs to mount its `/proc` and to drop capabilities.
const KEPT: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::SETPCAP);

/// Moves this process into its own user, mount and IPC namespaces. Without `network`, also into a network namespace whose
/// only interface is loopback. The next child becomes the first process of a process namespace.
pub(super) fn enter(network: bool) -> io::Result<()> {
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    let mut flags = CloneFlags::CLONE_NEWUSER
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWPID;
    if !network {
        flags |= CloneFlags::CLONE_NEWNET;
    }
    unshare(flags)?;
    // The user keeps its number, so that files look as they do outside.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    if !network {
        bring_up_loopback()?;
    }
    Ok(())
}

/// Moves this process into a copy of its mount namespace.
pub(super) fn separate_mounts() -> io::Result<()> {
    Ok(unshare(CloneFlags::CLONE_NEWNS)?)
}

/// Lets the next program of this process keep capabilities. Otherwise `exec` drops them for users other than root.
pub(super) fn keep_capabilities() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable = KEPT;
    set_capabilities(None, sets)?;
    for capability in KEPT.iter() {
        configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

/// Size of a netlink message that changes the flags of an interface.
const MESSAGE_BYTES: u32 = 32;
/// Netlink message type: change a network interface.
const RTM_NEWLINK: u16 = 16;
/// Netlink flag: this is a request.
const NLM_F_REQUEST: u16 = 1;
/// Interface flag: the interface is active.
const IFF_UP: u32 = 1;
/// Number of the loopback interface in a new namespace.
const LOOPBACK_INDEX: u32 = 1;

/// Activates the loopback interface of a new network namespace.
fn bring_up_loopback() -> io::Result<()> {
    // The default protocol is NETLINK_ROUTE.
    let socket = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    let mut message = Vec::new();
    // struct nlmsghdr: length, type, flags, sequence number, port.
    message.extend(MESSAGE_BYTES.to_ne_bytes());
    message.extend(RTM_NEWLINK.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    // struct ifinfomsg: family, type, index, flags, mask of changed flags.
    message.extend([0; 4]);
    message.extend(LOOPBACK_INDEX.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    send(&socket, &message, SendFlags::empty())?;
    Ok(())
}
