//! The whole program: arguments, settings, plugins, exit code.

use std::{
    ffi::OsString,
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use bub_agent::shell::{self, Launcher};
use bub_kernel::{
    BoxError, CliCommand, CliContext, Error, ErrorKind, Framework, FrameworkBuilder, Plugin,
    PluginContext, Result, Tool,
};
use bub_plugin::Asker;
use bub_settings::{Environment, Loader, Redactor, Section, Settings, SettingsError, Trust};
use clap::ArgMatches;

use crate::{
    arguments::{self, Parsed},
    builtin::Builtin,
    cli, external, logging,
};

/// The command failed.
const FAILED: u8 = 1;
/// Wrong arguments or configuration.
pub(crate) const USAGE: u8 = 2;
/// The plugin with everything that comes with the program.
const BUILTIN: &str = "builtin";
/// The commands that explain or repair a configuration, so they run with a broken one.
const REPAIRING: [&str; 6] = [
    "config",
    "doctor",
    "onboard",
    "completions",
    "man",
    "plugin",
];

/// What is wrong with the configuration, for the commands that run all the same.
pub(crate) struct Problems(pub(crate) Vec<SettingsError>);

/// The `bub` program, with the plugins you add.
///
/// Plugins are registered after `builtin`, in the order of the calls; later ones are asked first.
#[must_use]
#[derive(Default)]
pub struct App {
    add_plugins: Vec<Box<dyn FnOnce(FrameworkBuilder) -> FrameworkBuilder>>,
    sections: Vec<Section>,
    launcher: Option<Launcher>,
}

impl App {
    /// The stock program.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a plugin.
    pub fn plugin(mut self, name: &'static str, plugin: impl Plugin) -> Self {
        self.add_plugins
            .push(Box::new(move |builder| builder.plugin(name, plugin)));
        self
    }

    /// Adds a plugin that is made from its context; see [`FrameworkBuilder::plugin_with`].
    pub fn plugin_with<P: Plugin, E: Into<BoxError> + 'static>(
        mut self,
        name: &'static str,
        make: impl FnOnce(&PluginContext<'_>) -> Result<P, E> + Send + 'static,
    ) -> Self {
        self.add_plugins
            .push(Box::new(move |builder| builder.plugin_with(name, make)));
        self
    }

    /// Adds a tool; see [`FrameworkBuilder::tool`].
    pub fn tool(mut self, tool: impl Tool) -> Self {
        self.add_plugins
            .push(Box::new(move |builder| builder.tool(tool)));
        self
    }

    /// Declares the settings of a plugin, so that they are read, checked and documented like all others.
    pub fn settings(mut self, section: Section) -> Self {
        self.sections.push(section);
        self
    }

    /// Runs the program with the arguments of the process.
    pub fn main(mut self) -> ExitCode {
        // Here, and not in `run`: only a program that comes here with its own arguments can be its own helper.
        self.launcher = Launcher::this_program();
        self.run(std::env::args_os())
    }

    /// Runs the program with these arguments; the first is the program's name.
    pub fn run(self, args: impl IntoIterator<Item = impl Into<OsString>>) -> ExitCode {
        let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        // Before anything else: every command of the agent starts this way.
        if let [_, subcommand, rest @ ..] = args.as_slice()
            && subcommand == shell::SUBCOMMAND
        {
            return shell::supervise(rest);
        }
        keep_memory_private();
        let redactor = Redactor::new();
        self.try_run(&args, &redactor).unwrap_or_else(|failure| {
            // Nothing sensible is left to do when standard error is gone as well.
            let text = redactor.redact(&failure.text);
            let text = if failure.has_lines {
                cli::harmless(text.trim_end())
            } else {
                cli::one_line(&text)
            };
            let _ = writeln!(std::io::stderr(), "error: {text}");
            ExitCode::from(failure.code)
        })
    }

    fn try_run(mut self, args: &[OsString], redactor: &Redactor) -> Result<ExitCode, Failure> {
        let named = arguments::workspace(args);
        let workspace = named.clone().unwrap_or_else(|| PathBuf::from("."));
        // Help must work with a broken configuration, so problems wait until a command is to run.
        let (mut settings, problems) = self.load_settings(&workspace, redactor);
        logging::start(&settings, arguments::verbosity(args));
        let plugins = external::load(&mut settings);
        for warning in settings.warnings() {
            tracing::warn!("{warning}");
        }
        let problems = Arc::new(Problems(problems));
        let framework = self.compose(&workspace, settings, Arc::clone(&problems), plugins);
        let mut commands = framework.cli_commands();
        let parse = |commands: &[CliCommand]| {
            catch_unwind(AssertUnwindSafe(|| {
                arguments::parse(args, commands, named.as_deref())
            }))
        };
        // What programs say about their commands has no part in how our own are read.
        let word = arguments::command(args).unwrap_or_default();
        if commands
            .iter()
            .any(|known| !known.is_offered && known.is_called(word))
        {
            commands.retain(|known| !known.is_offered);
        }
        let parsed = parse(&commands).or_else(|_| {
            tracing::error!("plugin.commands_left_out error=they do not fit together");
            commands.retain(|known| !known.is_offered);
            parse(&commands)
        });
        let parsed = parsed
            .map_err(|_| Failure::usage("the commands of the plugins do not fit together"))?;
        let (name, matches) = match parsed {
            Parsed::Command(name, matches) => (name, matches),
            Parsed::Nothing if problems.0.is_empty() && cli::can_ask() => offer(&commands)?,
            Parsed::Nothing => return Ok(cli::print(arguments::NEXT_STEPS)?),
            Parsed::Print(text) => return Ok(cli::print(&text)?),
            Parsed::Wrong(line) => return Err(Failure::usage(line)),
        };
        arguments::check_workspace(&workspace).map_err(Failure::usage)?;
        if !REPAIRING.contains(&name.as_str()) {
            if let Some(problem) = problems.0.first() {
                return Err(Failure::usage(problem.to_string()));
            }
            let settings = framework.service::<Settings>();
            settings
                .map_or(Ok(()), |settings| check(&settings))
                .map_err(Failure::usage)?;
        }
        let Some(command) = commands
            .into_iter()
            .find(|known| known.command.get_name() == name)
        else {
            return Err(Failure::usage(format!("there is no command `{name}`")));
        };
        run_command(&command, CliContext { framework, matches })
    }

    fn load_settings(
        &mut self,
        workspace: &Path,
        redactor: &Redactor,
    ) -> (Settings, Vec<SettingsError>) {
        let loader = Loader::new(Environment::process())
            .workspace(workspace, Trust::Untrusted)
            .redactor(redactor);
        std::mem::take(&mut self.sections)
            .into_iter()
            .fold(loader, Loader::section)
            .load_lenient()
    }

    fn compose(
        self,
        workspace: &Path,
        settings: Settings,
        problems: Arc<Problems>,
        plugins: external::Loaded,
    ) -> Framework {
        let in_chat = Arc::<cli::InChat>::default();
        let asking = Arc::clone(&in_chat);
        let asker = Arc::new(Asker(Arc::new(move |question| asking.ask(question))));
        let mut builder = Framework::builder()
            .workspace(workspace)
            .service(Arc::new(settings))
            .service(problems)
            .service(in_chat)
            .service(asker);
        if let Some(launcher) = self.launcher {
            builder = builder.service(Arc::new(launcher));
        }
        let builder = builder.plugin_with(BUILTIN, Builtin::new);
        let builder = self
            .add_plugins
            .into_iter()
            .fold(builder, |builder, add| add(builder));
        plugins.add_to(builder).build()
    }
}

/// At a terminal, `bub` alone offers to set up what is missing.
fn offer(commands: &[CliCommand]) -> Result<(String, ArgMatches), Failure> {
    let args = ["bub", "onboard", &format!("--{}", cli::onboard::OFFER)].map(OsString::from);
    match arguments::parse(&args, commands, None) {
        Parsed::Command(name, matches) => Ok((name, matches)),
        _ => Err(Failure::usage("there is no command `onboard`")),
    }
}

/// On Linux other processes of this user, commands of the agent among them, could otherwise read the environment and the
/// memory of this one, keys included, in `/proc`. Best effort: where the system refuses, all else works.
fn keep_memory_private() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}

/// The settings with a shape of their own. A mistake in a provider must not wait for the first model call, and a broken
/// policy allows nothing, which is better known before than after.
pub(crate) fn check(settings: &Settings) -> Result<(), String> {
    bub_model::Catalogue::new(settings).map_err(|problem| problem.to_string())?;
    bub_agent::policy::Policy::new(settings)
        .problem()
        .map_or(Ok(()), |problem| Err(problem.to_owned()))
}

fn run_command(command: &CliCommand, context: CliContext) -> Result<ExitCode, Failure> {
    // The worker beside the main thread hears signals also while a plugin blocks the command. The gateway runs many
    // turns at once.
    let is_busy = command.command.get_name() == "gateway";
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(if is_busy { cores.clamp(2, 8) } else { 1 })
        .enable_all()
        .build()
        .map_err(|error| Error::unknown(format!("cannot start the runtime: {error}")))?;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on((command.run)(context))
    }));
    // What still runs in the background must not keep the program from ending.
    runtime.shutdown_background();
    // Nor may a question that nobody answered leave a terminal behind that does not show what is typed.
    bub_terminal::tty::restore();
    match outcome {
        Ok(outcome) => Ok(outcome?),
        Err(_) => Err(Error::unknown("the command panicked; the log says where").into()),
    }
}

/// What ends the program, in one line, with its exit code.
struct Failure {
    text: String,
    /// It quotes what a command printed.
    has_lines: bool,
    code: u8,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        // Where it happened, and how it calls that, matters when it is somebody else's code.
        let foreign = error.origin().filter(|origin| &*origin.plugin != BUILTIN);
        let has_lines = foreign.is_none() && error.kind() == ErrorKind::Tool;
        let text = match foreign {
            Some(origin) => format!("{error} (hook {} of plugin {})", origin.hook, origin.plugin),
            None => error.message().to_owned(),
        };
        let code = match error.kind() {
            ErrorKind::Config => USAGE,
            ErrorKind::InvalidInput if error.origin().is_none() => USAGE,
            _ => FAILED,
        };
        Self {
            text,
            has_lines,
            code,
        }
    }
}

impl Failure {
    fn usage(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            has_lines: false,
            code: USAGE,
        }
    }
}
