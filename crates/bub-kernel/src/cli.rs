//! Commands of the command line, as plugins contribute them.

use std::{
    fmt,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

use clap::{ArgMatches, Command};

use crate::{BoxFuture, error::Result, framework::Framework};

/// What a command works with.
#[derive(Debug)]
pub struct CliContext {
    /// The framework, not yet running.
    pub framework: Framework,
    /// What the user typed, parsed.
    pub matches: ArgMatches,
}

/// Runs a command.
pub type CliHandler = Arc<dyn Fn(CliContext) -> BoxFuture<'static, Result<ExitCode>> + Send + Sync>;

/// A command: how it is typed, and what it does.
#[derive(Clone)]
pub struct CliCommand {
    /// Name, help and arguments.
    pub command: Command,
    /// What it does.
    pub run: CliHandler,
}

impl CliCommand {
    /// A command that runs an async function.
    pub fn new<F, R>(command: Command, run: F) -> Self
    where
        F: Fn(CliContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<ExitCode>> + Send + 'static,
    {
        Self { command, run: Arc::new(move |context| Box::pin(run(context))) }
    }
}

impl fmt::Debug for CliCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CliCommand({})", self.command.get_name())
    }
}

/// The command line that `register_cli_commands` adds to.
#[derive(Debug, Default)]
pub struct CliApp(Mutex<Vec<CliCommand>>);

impl CliApp {
    /// Adds a command. Plugins are asked latest first, so the first command of a name stays: a
    /// plugin can replace a builtin one.
    pub fn add(&self, command: CliCommand) {
        let mut commands = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if commands.iter().all(|known| known.command.get_name() != command.command.get_name()) {
            commands.push(command);
        }
    }

    /// All commands.
    pub fn into_commands(self) -> Vec<CliCommand> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
