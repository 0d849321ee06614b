//! Programs that bub starts: commands of the agent, and plugins.
//!
//! * [`supervise`]: a hidden subcommand between bub and such a program, which ends all of it when bub is gone.
//! * [`Launcher`]: the program that has that subcommand, usually this one.
//! * [`PipedProcess`]: a program that is talked to over its standard input and output.

mod launcher;
mod piped;
mod supervisor;

pub use launcher::Launcher;
pub use piped::{PipedCommand, PipedProcess, ProcessGuard};
pub use supervisor::{KILL, PROCESS_NAME, SUBCOMMAND, TERMINATE, supervise};
