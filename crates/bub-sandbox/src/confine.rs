//! Confinement of a command by the Linux kernel, in two steps.
//!
//! [`prepare`] runs in the supervisor, before it has threads:
//!
//! 1. `namespaces`: own user, mount, IPC and process namespaces, and a network namespace if the network is off.
//! 2. `mounts`: shows the system, the workspace and granted paths, and protects parts of the workspace.
//!
//! [`restrict`] runs in the first process of the process namespace, before it starts the command:
//!
//! 1. `mounts`: a `/proc` that shows only this namespace.
//! 2. `limits`: resources and capabilities.
//! 3. `access`: Landlock rules for files, signals and abstract sockets.
//! 4. `syscalls`: a filter for system calls that a command does not need.
//!
//! Each step fails closed: without one of them, the command does not start.

mod access;
mod control_group;
mod limits;
mod mounts;
mod namespaces;
mod syscalls;
mod watch;

use std::io;

use crate::Confinement;

pub(crate) use control_group::ControlGroup;
pub(crate) use watch::{EndSignals, watch};

/// Directories with programs, libraries and their configuration.
pub(crate) const SYSTEM_DIRECTORIES: &[&str] = &[
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu",
    "/snap", "/proc", "/sys",
];
/// Data of the system in other directories that programs read.
pub(crate) const SYSTEM_DATA: &[&str] = &["/var/cache/fontconfig", "/var/lib/apt", "/var/lib/dpkg"];

/// Builds the namespaces and the file system of a command. The next child of this process lives in them. This process
/// stays in its process namespace, where the command can neither see nor stop it.
pub(crate) fn prepare(confinement: &Confinement) -> io::Result<()> {
    if confinement.workspace.parent().is_none() {
        let reason = "the workspace is the root directory; choose another one";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    // The current directory still refers to the mounts from before.
    let directory = std::env::current_dir()?;
    step("namespaces", namespaces::enter(confinement.network))?;
    step("mounts", mounts::set_up(confinement))?;
    std::env::set_current_dir(&directory).map_err(|error| {
        let directory = directory.display();
        let text = format!("`{directory}` is not visible in the sandbox: {error}");
        io::Error::new(error.kind(), text)
    })?;
    step("capabilities", namespaces::keep_capabilities())
}

/// Restricts this process and all its children.
pub(crate) fn restrict(confinement: &Confinement) -> io::Result<()> {
    // The supervisor needs the `/proc` from before to find the processes of the command.
    step("namespaces", namespaces::separate_mounts())?;
    let limits = &confinement.limits;
    step("/proc", mounts::set_up_processes(limits.max_processes))?;
    step("limits", limits::apply(limits))?;
    step("Landlock", access::restrict(confinement))?;
    step("seccomp", syscalls::restrict())
}

fn step(name: &str, result: io::Result<()>) -> io::Result<()> {
    result.map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))
}
