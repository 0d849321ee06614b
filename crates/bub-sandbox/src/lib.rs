//! Child processes of bub: shell commands of the agent and external plugins.
//!
//! * [`supervise`]: the hidden subcommand that runs between bub and a child. When bub exits, this supervisor ends the
//!   child's whole process tree.
//! * [`Launcher`]: the executable that has this subcommand, usually the running one.
//! * [`PipedProcess`]: a running program that bub talks to over stdin and stdout.

mod launcher;
mod piped;
mod supervisor;

pub use launcher::Launcher;
pub use piped::{PipedCommand, PipedProcess, ProcessGuard};
pub use supervisor::{KILL, PROCESS_NAME, SUBCOMMAND, TERMINATE, supervise};
