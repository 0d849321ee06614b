//! Landlock rules of a confined command: what it may read and write, and no signals or abstract sockets outside.

use std::{
    io,
    path::{Path, PathBuf},
};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::Confinement;

/// The newest interface whose rights are used. On an older kernel, the rights that it knows apply.
const NEWEST: ABI = ABI::V6;
/// Directories with programs, libraries and their configuration.
const SYSTEM_DIRECTORIES: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/opt",
    "/nix",
    "/gnu",
    "/snap",
    "/proc",
    "/sys",
    "/var/cache/fontconfig",
    "/var/lib/apt",
    "/var/lib/dpkg",
];
/// Directories that belong to the command, because they were empty when it started.
const PRIVATE_DIRECTORIES: &[&str] = &["/tmp", "/var/tmp", "/dev/shm", "/run"];
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
/// Fails if the kernel has no Landlock.
pub(super) fn restrict(confinement: &Confinement) -> io::Result<()> {
    let read = AccessFs::from_read(NEWEST);
    let write = AccessFs::from_all(NEWEST);
    let mut rules = Ruleset::default()
        .handle_access(write)
        .map_err(io::Error::other)?
        .set_compatibility(CompatLevel::BestEffort)
        .scope(Scope::AbstractUnixSocket | Scope::Signal)
        .map_err(io::Error::other)?
        .create()
        .map_err(io::Error::other)?;
    let workspace = if confinement.can_write { write } else { read };
    rules = allow(rules, [&confinement.workspace], workspace)?;
    rules = allow(rules, SYSTEM_DIRECTORIES, read)?;
    rules = allow(rules, &confinement.readable, read)?;
    rules = allow(rules, &confinement.writable, write)?;
    rules = allow(rules, PRIVATE_DIRECTORIES, write)?;
    rules = allow(rules, DEVICES, write)?;
    let home: Option<&PathBuf> = confinement.home.as_ref();
    // An empty directory covers the home directory, unless it is the workspace.
    let is_covered = |home: &&PathBuf| !home.starts_with(&confinement.workspace);
    rules = allow(rules, home.filter(is_covered), write)?;
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
