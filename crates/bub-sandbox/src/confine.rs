//! Confinement of a command by the Linux kernel.
//!
//! [`enter`] runs in the process that becomes the command, before `exec`. It has one thread. In this order:
//!
//! 1. `namespaces`: own user, mount and IPC namespaces, and a network namespace if the network is off.
//! 2. `mounts`: hides the home directory and protects parts of the workspace.
//! 3. `limits`: resources and capabilities.
//! 4. `access`: Landlock rules for files, signals and abstract sockets.
//! 5. `syscalls`: a filter for system calls that a command does not need.
//!
//! Each step fails closed: without one of them, the command does not start.

mod access;
mod limits;
mod mounts;
mod namespaces;
mod syscalls;

use std::io;

use crate::Confinement;

/// Confines this process and all its children.
pub(crate) fn enter(confinement: &Confinement) -> io::Result<()> {
    let step = |name: &str, result: io::Result<()>| {
        result.map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))
    };
    if confinement.workspace.parent().is_none() {
        let reason = "the workspace is the root directory; choose another one";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    // The current directory still refers to the mounts from before.
    let directory = std::env::current_dir()?;
    step("namespaces", namespaces::enter(confinement.network))?;
    step("mounts", mounts::set_up(confinement))?;
    std::env::set_current_dir(directory)?;
    step("limits", limits::apply(&confinement.limits))?;
    step("Landlock", access::restrict(confinement))?;
    step("seccomp", syscalls::restrict())
}
