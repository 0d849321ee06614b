//! CLI commands that plugins add: a description and a handler.

use std::{fmt, process::ExitCode, sync::Arc};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    BoxFuture,
    error::{Error, Result},
    framework::Framework,
};

/// The description of a command: name, help and arguments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CommandSpec {
    /// The name that users type.
    pub name: String,
    /// One line that describes the command.
    pub about: String,
    /// Options and positional arguments.
    pub args: Vec<CommandArg>,
    /// Whether the handler gets everything after the name unparsed, under [`CommandSpec::RAW_ARG`]. `args` is not used then.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub raw: bool,
}

impl CommandSpec {
    /// Name of the argument of a raw command.
    pub const RAW_ARG: &str = "argv";
}

/// An argument of a command.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a field of the plugin protocol"
)]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CommandArg {
    /// Name of the argument: `--name VALUE`, or the value's label if positional.
    pub name: String,
    /// Help text of the argument.
    pub help: String,
    /// Whether the value is given by position instead of by name.
    pub positional: bool,
    /// Whether the argument is a switch without a value.
    pub flag: bool,
    /// Whether the argument must be given.
    pub required: bool,
    /// Whether the argument may be given more than once.
    pub many: bool,
    /// The value if the argument is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
}

impl CommandArg {
    /// Creates an option `--name VALUE`.
    pub fn option(name: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            help: help.into(),
            ..Self::default()
        }
    }

    /// Creates a switch `--name`.
    pub fn flag(name: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            flag: true,
            ..Self::option(name, help)
        }
    }

    /// Creates a positional argument.
    pub fn positional(name: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            positional: true,
            ..Self::option(name, help)
        }
    }

    /// Makes the argument required.
    #[must_use]
    pub fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// Allows the argument to be given more than once.
    #[must_use]
    pub fn multiple(mut self) -> Self {
        self.many = true;
        self
    }

    /// Sets the value that is used if the argument is not given.
    #[must_use]
    pub fn default_value(mut self, value: impl Into<String>) -> Self {
        self.default = Some(value.into());
        self
    }
}

/// The argument values of one command invocation, in the order of its [`CommandSpec`]: a boolean for a switch, a list
/// for an argument that may be given more than once, otherwise text, or null if there is no value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct CommandArgs(Map<String, Value>);

impl CommandArgs {
    /// Returns the value of an argument, or the first value if it was given more than once.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.values(name).first().copied()
    }

    /// Returns whether a switch was given.
    pub fn has_flag(&self, name: &str) -> bool {
        self.0.get(name) == Some(&Value::Bool(true))
    }

    /// Returns all values of an argument.
    pub fn values(&self, name: &str) -> Vec<&str> {
        let values = match self.0.get(name) {
            Some(Value::Array(values)) => values.as_slice(),
            value => value.map(std::slice::from_ref).unwrap_or_default(),
        };
        values.iter().filter_map(Value::as_str).collect()
    }
}

impl From<Map<String, Value>> for CommandArgs {
    fn from(values: Map<String, Value>) -> Self {
        Self(values)
    }
}

/// The context of a command handler.
#[derive(Debug)]
#[non_exhaustive]
pub struct CliContext {
    /// The framework. Its running scope is not open.
    pub framework: Framework,
    /// The argument values.
    pub args: CommandArgs,
}

impl CliContext {
    /// Creates the context of a command.
    pub fn new(framework: Framework, args: CommandArgs) -> Self {
        Self { framework, args }
    }
}

/// The function that runs a command and returns its exit code.
pub type CliHandler = Arc<dyn Fn(CliContext) -> BoxFuture<'static, Result<ExitCode>> + Send + Sync>;

/// A command: its description and its handler.
///
/// ```
/// use std::process::ExitCode;
/// use bub_kernel::{CliCommand, CommandArg};
///
/// let command = CliCommand::new("greet", "Greet someone")
///     .arg(CommandArg::positional("name", "Name of the person").required())
///     .handler(|context| async move {
///         println!("hello {}", context.args.text("name").unwrap_or_default());
///         Ok(ExitCode::SUCCESS)
///     });
/// assert_eq!(command.spec.name, "greet");
/// ```
#[derive(Clone)]
pub struct CliCommand {
    /// Name, help and arguments of the command.
    pub spec: CommandSpec,
    /// The handler.
    pub run: CliHandler,
    /// Whether any other command with this name takes precedence; see [`CliApp::add_if_absent`].
    pub is_fallback: bool,
}

impl CliCommand {
    /// Creates a command without arguments. It fails until [`CliCommand::handler`] sets its handler.
    pub fn new(name: impl Into<String>, about: impl Into<String>) -> Self {
        Self::from_spec(CommandSpec {
            name: name.into(),
            about: about.into(),
            ..CommandSpec::default()
        })
    }

    /// Creates a command from its description. It fails until [`CliCommand::handler`] sets its handler.
    pub fn from_spec(spec: CommandSpec) -> Self {
        let message = format!(
            "cannot run command `{}`: it has no handler; the plugin must set one",
            spec.name
        );
        let error = Error::unknown(message);
        Self {
            spec,
            run: Arc::new(move |_| Box::pin(std::future::ready(Err(error.clone())))),
            is_fallback: false,
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: CommandArg) -> Self {
        self.spec.args.push(arg);
        self
    }

    /// Sets the handler.
    #[must_use]
    pub fn handler<F, R>(mut self, handler: F) -> Self
    where
        F: Fn(CliContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<ExitCode>> + Send + 'static,
    {
        self.run = Arc::new(move |context| Box::pin(handler(context)));
        self
    }
}

impl fmt::Debug for CliCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CliCommand({})", self.spec.name)
    }
}

/// The set of commands that the hook `register_cli_commands` adds to.
#[derive(Debug, Default)]
pub struct CliApp(Mutex<Vec<CliCommand>>);

impl CliApp {
    /// Adds a command, which can replace a builtin command. The plugin registered last is called first, so its command
    /// wins if several plugins add the same name.
    pub fn add(&self, command: CliCommand) {
        let mut commands = self.0.lock();
        let is_same =
            |other: &CliCommand| !other.is_fallback && other.spec.name == command.spec.name;
        if !commands.iter().any(is_same) {
            commands.push(command);
        }
    }

    /// Adds a command unless any other command has its name. It never replaces another command.
    pub fn add_if_absent(&self, command: CliCommand) {
        let mut commands = self.0.lock();
        commands.push(CliCommand {
            is_fallback: true,
            ..command
        });
    }

    /// Returns all commands. Those added with [`CliApp::add_if_absent`] come last.
    pub fn into_commands(self) -> Vec<CliCommand> {
        let all = self.0.into_inner();
        let (fallbacks, mut commands): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|command| command.is_fallback);
        for command in fallbacks {
            let name = &command.spec.name;
            if commands.iter().any(|other| other.spec.name == *name) {
                tracing::warn!(command = %name, error = "another command has this name", "cli.command_skipped");
            } else {
                commands.push(command);
            }
        }
        commands
    }
}
