//! Programs that bub starts: commands of the agent, and plugins.
//!
//! * [`supervise`]: a hidden subcommand between bub and such a program, which ends all of it when bub is gone.
//! * [`Launcher`]: the program that has that subcommand, usually this one.
//! * [`Talker`]: a program that is talked to over its standard input and output.

mod launcher;
mod supervisor;
mod talker;

pub use launcher::Launcher;
pub use supervisor::{KILL, NAME, SUBCOMMAND, TERMINATE, supervise};
pub use talker::{Leash, Talk, Talker};
