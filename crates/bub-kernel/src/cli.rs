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
    /// Whether it was only offered, and gives way to all others; see [`CliApp::offer`].
    pub is_offered: bool,
}

impl CliCommand {
    /// A command that runs an async function.
    pub fn new<F, R>(command: Command, run: F) -> Self
    where
        F: Fn(CliContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<ExitCode>> + Send + 'static,
    {
        Self {
            command,
            run: Arc::new(move |context| Box::pin(run(context))),
            is_offered: false,
        }
    }
}

impl CliCommand {
    /// Whether it is what this word calls: its name, or another name it has.
    pub fn is_called(&self, word: &str) -> bool {
        self.command.get_name() == word || self.command.get_all_aliases().any(|alias| alias == word)
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
        let name = command.command.get_name();
        if commands
            .iter()
            .all(|known| known.is_offered || known.command.get_name() != name)
        {
            commands.push(command);
        }
    }

    /// Adds a command that replaces none: one whose name is taken, by whomever, is left out.
    pub fn offer(&self, command: CliCommand) {
        let mut commands = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        commands.push(CliCommand {
            is_offered: true,
            ..command
        });
    }

    /// All commands, those that were only offered last.
    pub fn into_commands(self) -> Vec<CliCommand> {
        let all = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (offered, mut commands): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|known| known.is_offered);
        for command in offered {
            let name = command.command.get_name();
            if name == "help" || commands.iter().any(|known| known.is_called(name)) {
                tracing::warn!("cli.command_left_out command={name} error=the name is taken");
            } else {
                commands.push(command);
            }
        }
        commands
    }
}
