//! Landlock rules of a confined command: what it may read and write, and no signals or abstract sockets outside.

use std::{io, path::Path};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use super::{SYSTEM_DATA, SYSTEM_DIRECTORIES, mounts::PRIVATE_DIRECTORIES};
use crate::Confinement;

/// The newest interface whose rights are used. On an older kernel, the rights that it knows apply.
const NEWEST: ABI = ABI::V6;
/// The oldest interface that suffices: Linux 6.2. Newer ones add rights on devices.
const OLDEST: ABI = ABI::V3;
/// Devices that programs use. Disks and other hardware are not among them.
const DEVICES: &[&str] = &[
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
];

/// Restricts this process and its children.
///
/// # Errors
///
/// Fails if the kernel cannot enforce all that the other parts of the confinement rely on.
pub(super) fn restrict(confinement: &Confinement) -> io::Result<()> {
    let read = AccessFs::from_read(NEWEST);
    let write = AccessFs::from_all(NEWEST);
    // With the network, the command shares abstract sockets with other programs, and only this scope keeps it from them.
    // Signals do not leave the process namespace.
    let (scope_level, kernel) = if confinement.network {
        (CompatLevel::HardRequirement, "6.12, or 6.2 without network")
    } else {
        (CompatLevel::BestEffort, "6.2")
    };
    let create = || {
        Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(OLDEST))?
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(write)?
            .set_compatibility(scope_level)
            .scope(Scope::AbstractUnixSocket | Scope::Signal)?
            .set_compatibility(CompatLevel::BestEffort)
            .create()
    };
    let mut rules = create().map_err(|error: RulesetError| {
        io::Error::other(format!(
            "{error}; it needs Linux {kernel} with Landlock enabled"
        ))
    })?;
    let workspace = if confinement.can_write { write } else { read };
    rules = allow(rules, [&confinement.workspace], workspace)?;
    // The mounts decide which names are visible.
    rules = allow(rules, ["/"], AccessFs::ReadDir.into())?;
    rules = allow(rules, SYSTEM_DIRECTORIES, read)?;
    rules = allow(rules, SYSTEM_DATA, read)?;
    rules = allow(rules, &confinement.readable, read)?;
    rules = allow(rules, &confinement.writable, write)?;
    rules = allow(rules, PRIVATE_DIRECTORIES, write)?;
    rules = allow(rules, DEVICES, write)?;
    rules = allow(rules, confinement.covered_home(), read)?;
    let caches = confinement.private_caches();
    rules = allow(rules, caches.map(|(_, cache)| cache), write)?;
    let status = rules.restrict_self().map_err(io::Error::other)?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err(io::Error::other(
            "the kernel does not support it, or it is disabled",
        )),
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
    }
}

/// Allows access to existing paths.
fn allow<P: AsRef<Path>>(
    mut rules: RulesetCreated,
    paths: impl IntoIterator<Item = P>,
    access: BitFlags<AccessFs>,
) -> io::Result<RulesetCreated> {
    for path in paths {
        let path = path.as_ref();
        let Ok(opened) = PathFd::new(path) else {
            continue;
        };
        let access = if path.is_dir() {
            access
        } else {
            access & AccessFs::from_file(NEWEST)
        };
        let rule = PathBeneath::new(opened, access);
        rules = rules.add_rule(rule).map_err(io::Error::other)?;
    }
    Ok(rules)
}
