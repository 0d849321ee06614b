//! Child processes of bub: shell commands of the agent and external plugins.
//!
//! * [`supervise`]: the hidden subcommand that runs between bub and a child. When bub exits, this supervisor ends the
//!   child's whole process tree.
//! * [`Launcher`]: the executable that has this subcommand, usually the running one.
//! * `init`: the first process of a confined command, between the supervisor and the command.
//! * [`PipedProcess`]: a running program that bub talks to over stdin and stdout.
//! * [`Confinement`]: what a command may read, write and reach. On Linux, the kernel enforces it (`confine`); on macOS,
//!   a Seatbelt profile (`seatbelt`). `protection` finds and restores what a command may not change in the workspace:
//!   the git directories that `repositories` finds, and the `named_paths` in their `git_config`. `new_repositories` reviews
//!   those that commands created, `git_state`, `git_index` and `references` what git stores while it works, `links` the links, and [`enable_repository`] is for the user. Commands that run at the same time compare
//!   with one `baseline`.
//!   [`PathAccess`] is what a confinement allows at a path. [`hold_temp_directory`] keeps the temporary directory of a
//!   command from being removed.

mod baseline;
mod command_words;
#[cfg(target_os = "linux")]
mod confine;
mod confinement;
mod directory_index;
mod enable;
mod git_config;
mod git_index;
mod git_state;
mod init;
mod launcher;
mod links;
mod named_paths;
mod new_repositories;
mod path_access;
mod piped;
mod protection;
mod references;
mod repositories;
mod seatbelt;
mod supervisor;
mod temp;

pub use confinement::{
    Confinement, GRANTS, ParseSandboxProfileError, ResourceLimits, SandboxProfile,
};
pub use enable::enable_repository;
pub use launcher::Launcher;
pub use named_paths::UNPROTECTED_TEXT;
pub use path_access::{PathAccess, is_below};
pub use piped::{PipedCommand, PipedProcess, ProcessGuard};
pub use seatbelt::seatbelt_profile;
pub use supervisor::{
    CONFINEMENT_FAILED_CODE, KILL, PROCESS_NAME, SUBCOMMAND, TERMINATE, supervise,
};
pub use temp::{hold_temp_directory, remove_temp_directory};
