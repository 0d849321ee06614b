//! Resource limits and capabilities of a confined command.

use std::io;

use rustix::{
    process::{Resource, Rlimit, setrlimit},
    thread::{
        CapabilitySet, CapabilitySets, clear_ambient_capability_set,
        remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
    },
};

use crate::ResourceLimits;

/// Sets the limits and removes all capabilities. Programs with the set-user-id bit give no new ones.
pub(super) fn apply(limits: &ResourceLimits) -> io::Result<()> {
    let limited = [
        (Resource::Nproc, limits.max_processes),
        (Resource::Data, limits.max_memory_bytes),
        (Resource::Fsize, limits.max_file_bytes),
        (Resource::Core, Some(0)),
    ];
    for (resource, limit) in limited {
        if limit.is_some() {
            lower_limit(resource, limit)?;
        }
    }
    set_no_new_privs(true)?;
    for capability in CapabilitySet::all().iter() {
        // A kernel that does not know a capability cannot grant it.
        let _ = remove_capability_from_bounding_set(capability);
    }
    let _ = clear_ambient_capability_set();
    let none = CapabilitySet::empty();
    set_capabilities(
        None,
        CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )?;
    Ok(())
}

/// Sets a limit, unless the current one is lower.
fn lower_limit(resource: Resource, limit: Option<u64>) -> io::Result<()> {
    let current = rustix::process::getrlimit(resource);
    let lower = |current: Option<u64>| match (current, limit) {
        (Some(current), Some(limit)) => Some(current.min(limit)),
        (current, limit) => current.or(limit),
    };
    let new = Rlimit {
        current: lower(current.current),
        maximum: lower(current.maximum),
    };
    Ok(setrlimit(resource, new)?)
}
