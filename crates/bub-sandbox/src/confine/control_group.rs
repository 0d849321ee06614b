//! Limits for all processes of a command together, by a control group (cgroup v2) where this user can create one.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, unlinkat};

use crate::ResourceLimits;

/// Directories at which the file system of control groups can be mounted.
const MOUNT_POINTS: &[&str] = &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// File with the processes of a group. Writing `0` adds the current one.
const PROCESSES_FILE: &str = "cgroup.procs";

/// The control group of this process and its children. It is opened before the process enters namespaces, in which it
/// could not be changed any more.
pub(crate) struct ControlGroup {
    /// The directory above the group, and the name of the group.
    parent: OwnedFd,
    name: String,
    /// [`PROCESSES_FILE`] of the group that this process came from.
    previous: File,
}

impl ControlGroup {
    /// Moves this process into a new group with the limits. Returns `None` where that is not possible.
    pub(crate) fn enter(limits: &ResourceLimits) -> Option<Self> {
        let text = fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let mut roots = MOUNT_POINTS.iter().map(Path::new);
        let root = roots.find(|root| root.join("cgroup.controllers").exists())?;
        Self::enter_below(root, &root.join(own), limits)
    }

    /// Creates the group in the group of this process, or beside it.
    fn enter_below(root: &Path, own: &Path, limits: &ResourceLimits) -> Option<Self> {
        let previous = File::options()
            .write(true)
            .open(own.join(PROCESSES_FILE))
            .ok()?;
        let beside = own.parent().filter(|parent| parent.starts_with(root));
        let mut parents = [Some(own), beside].into_iter().flatten();
        parents.find_map(|parent| {
            let name = format!("bub-{}", std::process::id());
            let group = parent.join(&name);
            let directory = openat(
                CWD,
                parent,
                OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            );
            let directory = directory.ok()?;
            if set_up(parent, &group, limits).is_err() {
                let _ = fs::remove_dir(&group);
                return None;
            }
            let previous = previous.try_clone().ok()?;
            Some(Self {
                parent: directory,
                name,
                previous,
            })
        })
    }
}

/// Leaves and removes the group, whose other processes have ended.
impl Drop for ControlGroup {
    fn drop(&mut self) {
        // Ignore errors: an empty group has no effect.
        let _ = self.previous.write_all(b"0");
        let _ = unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR);
    }
}

/// Creates a group with the limits and moves this process into it.
fn set_up(parent: &Path, group: &PathBuf, limits: &ResourceLimits) -> io::Result<()> {
    let controllers = fs::read_to_string(parent.join("cgroup.subtree_control"))?;
    let limited = [
        ("pids", limits.max_processes),
        ("memory", limits.max_memory_bytes),
    ];
    if !limited
        .iter()
        .all(|(name, _)| controllers.split_whitespace().any(|found| found == *name))
    {
        return Err(io::ErrorKind::Unsupported.into());
    }
    fs::create_dir(group)?;
    for (name, limit) in limited {
        if let Some(limit) = limit {
            fs::write(group.join(format!("{name}.max")), limit.to_string())?;
        }
    }
    fs::write(group.join(PROCESSES_FILE), "0")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_group_with_the_limits_is_created_beside_that_of_the_process() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("app.slice/terminal.scope");
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join(PROCESSES_FILE), "").unwrap();
        fs::write(own.join("cgroup.subtree_control"), "").unwrap();
        let beside = root.path().join("app.slice/cgroup.subtree_control");
        let limits = ResourceLimits {
            max_processes: Some(7),
            max_memory_bytes: Some(8),
            max_file_bytes: None,
        };
        fs::write(&beside, "memory\n").unwrap();
        assert!(ControlGroup::enter_below(root.path(), &own, &limits).is_none());
        fs::write(&beside, "cpu memory pids\n").unwrap();
        let group = ControlGroup::enter_below(root.path(), &own, &limits).unwrap();
        let directory = root.path().join("app.slice").join(&group.name);
        let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
        assert_eq!(
            [read("pids.max"), read("memory.max"), read(PROCESSES_FILE)],
            ["7", "8", "0"]
        );
        drop(group);
        assert_eq!(fs::read_to_string(own.join(PROCESSES_FILE)).unwrap(), "0");
    }
}
