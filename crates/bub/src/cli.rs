//! The builtin commands of the command line, one file each.

mod hooks;
mod output;
mod run;
mod tape;

use bub_kernel::CliApp;
pub(crate) use output::print;

/// Registers the builtin commands, in the order in which help lists them.
pub(crate) struct Commands;

#[bub_macros::hooks(crate = bub_kernel)]
impl Commands {
    fn register_cli_commands(&self, app: &CliApp) {
        app.add(run::command());
        app.add(hooks::command());
        app.add(tape::command());
    }
}
