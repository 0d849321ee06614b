//! The executable that runs as the supervisor.

use std::path::PathBuf;

/// Path of an executable whose `main` runs [`supervise`](crate::supervise) for [`SUBCOMMAND`](crate::SUBCOMMAND).
#[derive(Clone, Debug)]
pub struct Launcher(pub PathBuf);

impl Launcher {
    /// Returns the running executable, or `None` if its path is unknown.
    ///
    /// On Linux this is `/proc/self/exe`, which still names the running executable after an upgrade replaced the file.
    pub fn current_program() -> Option<Self> {
        let proc_path = PathBuf::from("/proc/self/exe");
        if proc_path.exists() {
            Some(Self(proc_path))
        } else {
            std::env::current_exe().ok().map(Self)
        }
    }
}
