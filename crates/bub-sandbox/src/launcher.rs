//! The program that supervises others.

use std::path::PathBuf;

/// The program to start others with: one whose `main` runs [`supervise`](crate::supervise) for
/// [`SUBCOMMAND`](crate::SUBCOMMAND).
#[derive(Clone, Debug)]
pub struct Launcher(pub PathBuf);

impl Launcher {
    /// This very program, also when another was put in its place since.
    pub fn this_program() -> Option<Self> {
        let own = PathBuf::from("/proc/self/exe");
        if own.exists() {
            Some(Self(own))
        } else {
            std::env::current_exe().ok().map(Self)
        }
    }
}
