//! A program: parses arguments, loads settings and plugins, runs a command and returns the exit code.

use std::{
    any::Any,
    ffi::OsString,
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use bub_agent::shell::{self, Launcher};
use bub_kernel::{
    Error, ErrorKind, Framework, FrameworkBuilder, Result, Tool, set_command_prefix,
    settings::{COMMAND_PREFIX, TAPE_STORAGE, TapeStorage},
};
use bub_model::LoginFactory;
use bub_plugin::{HostContext, PROTOCOL_VARIABLE, QuestionHandler};
use bub_settings::{
    Environment, Loader, Redactor, Section, Settings, SettingsError, TrustReport, WorkspaceTrust,
};
use clap::ArgMatches;
use rustix::fs::Access;

use crate::{
    app_settings,
    args::{self, ParsedArgs},
    builtin::BuiltinPlugin,
    command::{AppCommand, CommandContext, SettingFlag, TrustHandling},
    constructor::PluginConstructor,
    logging, output, plugins,
    prompt::{self, PluginPrompt},
    trust,
};

/// Exit code if a command fails.
const EXIT_FAILURE: u8 = 1;
/// Exit code if the user interrupts the program.
const EXIT_INTERRUPTED: u8 = 130;
/// Exit code for invalid arguments or configuration. An argument is also invalid if what it names does not exist.
const EXIT_USAGE: u8 = 2;

/// Errors in the configuration. Commands that allow invalid settings report these errors.
#[derive(Debug, Default)]
pub struct SettingsProblems(pub Vec<SettingsError>);

/// A plugin or tool of the program: the name of the plugin, and the function that adds it to the framework.
type AddPlugin = (
    Option<&'static str>,
    Box<dyn FnOnce(FrameworkBuilder) -> FrameworkBuilder + Send>,
);

/// A program with the plugin `builtin` and the plugins and commands you add.
///
/// If bub starts the program as an external plugin, [`main`](Self::main) serves the plugin that you add. So the same
/// program can be used as a plugin of another bub.
///
/// Plugins are registered after `builtin`, in the order in which you add them. The plugin that was
/// registered last runs first. `bub_cli::app()` returns an `App` with the commands and channels of
/// `bub`.
#[must_use]
#[derive(Default)]
pub struct App {
    add_plugins: Vec<AddPlugin>,
    commands: Vec<AppCommand>,
    sections: Vec<Section>,
    logins: Vec<LoginFactory>,
    bundled_plugins: Vec<&'static str>,
    bundled_channels: Vec<&'static str>,
    next_steps: Option<&'static str>,
    default_command: Vec<&'static str>,
    message_command: Option<&'static str>,
    launcher: Option<Launcher>,
}

impl App {
    /// Creates a program without commands.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a command. A plugin's command with the same name replaces it.
    pub fn command(mut self, command: AppCommand) -> Self {
        self.commands.push(command);
        self
    }

    /// Adds a plugin that is part of the program, with the names of its channels.
    ///
    /// External plugins cannot replace these channels. Error messages do not name a bundled plugin.
    pub fn bundled_plugin<A>(
        mut self,
        name: &'static str,
        channels: &[&'static str],
        plugin: impl PluginConstructor<A>,
    ) -> Self {
        self.bundled_plugins.push(name);
        self.bundled_channels.extend(channels);
        self.plugin(name, plugin)
    }

    /// Sets the text that the program prints if no command is given. Default: the help.
    pub fn next_steps(mut self, text: &'static str) -> Self {
        self.next_steps = Some(text);
        self
    }

    /// Sets the command that runs if no command is given, stdin and stderr are a terminal, and the
    /// configuration is valid.
    pub fn default_command(mut self, args: &[&'static str]) -> Self {
        self.default_command = args.to_vec();
        self
    }

    /// Sets the command that gets the first argument if it is a message: text with white space instead of a command.
    pub fn message_command(mut self, name: &'static str) -> Self {
        self.message_command = Some(name);
        self
    }

    /// Adds a plugin under this name: the plugin itself, or a function that creates it.
    ///
    /// The function takes a struct with `#[derive(Settings)]`, a [`PluginContext`](crate::PluginContext), or both in
    /// this order. It returns the plugin, or a `Result` with it. The settings are declared, too, so that bub reads,
    /// validates and documents them.
    ///
    /// ```no_run
    /// use bub::prelude::*;
    ///
    /// #[derive(Settings)]
    /// #[settings(section = "greeter")]
    /// struct GreeterSettings {
    ///     /// Word to greet with.
    ///     #[setting(default = "Hello")]
    ///     word: String,
    /// }
    ///
    /// struct Greeter(GreeterSettings);
    ///
    /// #[hooks]
    /// impl Greeter {
    ///     fn run_model(&self, prompt: &Prompt) -> String {
    ///         format!("{}, {}!", self.0.word, prompt.text())
    ///     }
    /// }
    ///
    /// App::new().plugin("greeter", |settings: GreeterSettings| Greeter(settings)).main();
    /// ```
    pub fn plugin<A, C: PluginConstructor<A>>(mut self, name: &'static str, plugin: C) -> Self {
        self.sections.extend(C::section());
        let add = move |builder: FrameworkBuilder| {
            builder.plugin_with(name, |context| plugin.create(context))
        };
        self.add_plugins.push((Some(name), Box::new(add)));
        self
    }

    /// Adds a tool; see [`FrameworkBuilder::tool`].
    pub fn tool(mut self, tool: impl Tool) -> Self {
        let add = move |builder: FrameworkBuilder| builder.tool(tool);
        self.add_plugins.push((None, Box::new(add)));
        self
    }

    /// Declares further settings, for example of a command, so that bub reads, validates and documents them. For a
    /// struct with `#[derive(Settings)]`, [`FromSettings::section`](crate::settings::FromSettings::section) returns them.
    pub fn settings(mut self, section: Section) -> Self {
        self.sections.push(section);
        self
    }

    /// Adds a login with which models can be called without an API key; see
    /// [`ProviderLogin`](crate::ProviderLogin). Of several logins for a provider, bub uses the one that
    /// was added last.
    pub fn login(mut self, login: LoginFactory) -> Self {
        self.logins.push(login);
        self
    }

    /// Runs the program with the arguments of the process.
    pub fn main(mut self) -> ExitCode {
        // Not set in `run`, whose caller may pass other arguments than those of the process. Such a
        // program cannot start itself as the supervisor.
        self.launcher = Launcher::current_program();
        self.run(std::env::args_os())
    }

    /// Runs the program with these arguments. The first argument is the name of the program.
    pub fn run(self, args: impl IntoIterator<Item = impl Into<OsString>>) -> ExitCode {
        let mut args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        // Checked first, because bub starts a supervisor for every shell command of the agent, and
        // it should start fast.
        if let [_, subcommand, rest @ ..] = args.as_slice()
            && subcommand == shell::SUBCOMMAND
        {
            return shell::supervise(rest);
        }
        set_process_undumpable();
        if let Some(command) = self.message_command {
            args::insert_message_command(&mut args, command);
        }
        // Not with arguments: a program that the plugin starts inherits the variable.
        let is_plugin = Environment::from_process().get(PROTOCOL_VARIABLE).is_some();
        if is_plugin && args.len() <= 1 {
            return self.serve();
        }
        let is_plain = self.commands.is_empty() && self.next_steps.is_none();
        if is_plain && args.len() <= 1 {
            return print_plugin_notice();
        }
        let redactor = Redactor::new();
        let bundled_plugins = self.bundled_plugins.clone();
        self.try_run(&args, &redactor)
            .unwrap_or_else(|error| report_error(&error, &bundled_plugins, &redactor))
    }

    /// Serves the plugin of the program to the bub that started it. The bundled plugins are not served: that bub has
    /// its own.
    fn serve(self) -> ExitCode {
        let bundled = self.bundled_plugins;
        let own = self
            .add_plugins
            .into_iter()
            .filter(move |(name, _)| name.is_none_or(|name| !bundled.contains(&name)));
        bub_plugin::serve(self.sections, |builder| {
            own.fold(builder, |builder, (_, add)| add(builder))
        })
    }

    fn try_run(self, args: &[OsString], redactor: &Redactor) -> Result<ExitCode> {
        let workspace_arg = args::workspace(args);
        let workspace = workspace_arg.clone().unwrap_or_else(|| PathBuf::from("."));
        // Help must work with an invalid configuration, so report problems only when a command
        // runs.
        let environment = Environment::from_process();
        let current_dir = std::env::current_dir().ok();
        let trust = WorkspaceTrust::new(&environment, current_dir.as_deref());
        let mut report = trust.inspect(&workspace);
        let (flags, needs_home) =
            self.prepare_command(args, workspace_arg.as_deref(), &trust, &mut report)?;
        let loader = Loader::new(environment);
        let loader = flags.into_iter().fold(loader, |loader, flag| {
            loader.flag(flag.key, flag.flag, &flag.value)
        });
        let (mut settings, problems) = loader
            .workspace(trust, report)
            .redactor(redactor)
            .sections(core_sections())
            .sections(self.sections)
            .load_lenient();
        let is_unsafe = |problem: &SettingsError| matches!(problem, SettingsError::Unsafe { .. });
        let is_unsafe = problems.iter().any(is_unsafe);
        if needs_home && !is_unsafe {
            check_home(&settings)?;
        }
        logging::start_logging(&settings, args::verbosity(args));
        let plugins = if is_unsafe {
            plugins::LoadedPlugins::default()
        } else {
            plugins::load(&mut settings)
        };
        apply_settings(&settings);
        let settings = Arc::new(settings);
        let launcher = self.launcher.map(Arc::new);
        let plugin_prompt = Arc::<PluginPrompt>::default();
        let prompt = Arc::clone(&plugin_prompt);
        let ask_user = QuestionHandler(Arc::new(move |question| prompt.ask_user(question)));
        let host = HostContext {
            question_handler: Some(ask_user),
            ..plugins::host_context(Arc::clone(&settings), &workspace, launcher.clone())
        };
        let logins: Arc<[LoginFactory]> = self.logins.into();
        let (agent_launcher, agent_logins) = (launcher.clone(), Arc::clone(&logins));
        let builder = Framework::builder()
            .workspace(&workspace)
            .settings(Arc::clone(&settings))
            .plugin_with(BuiltinPlugin::NAME, move |context| {
                let launcher = agent_launcher.as_deref().cloned();
                Ok::<_, Error>(BuiltinPlugin::new(context, launcher, agent_logins))
            });
        let add_plugins = self.add_plugins.into_iter();
        let builder = add_plugins.fold(builder, |builder, (_, add)| add(builder));
        let framework = plugins.add_to_builder(builder, &host).build();
        let mut commands = AppCommand::merge_commands(framework.cli_commands(), self.commands);
        let (name, matches) = match parse_args(
            args,
            &mut commands,
            workspace_arg.as_deref(),
            self.message_command,
        )? {
            ParsedArgs::Command(name, matches) => (name, matches),
            ParsedArgs::Nothing
                if problems.is_empty()
                    && !self.default_command.is_empty()
                    && prompt::has_terminal() =>
            {
                parse_default_command(&self.default_command, &commands)?
            }
            ParsedArgs::Nothing => return print_next_steps(self.next_steps, &commands),
            ParsedArgs::Print(text) => return output::print(&text),
            ParsedArgs::Wrong(line) => return Err(Error::invalid_input(line)),
        };
        args::check_workspace(&workspace).map_err(Error::invalid_input)?;
        let mut named = commands.iter().filter(|command| command.name() == name);
        let command = named.next().cloned().ok_or_else(|| {
            Error::invalid_input(format!(
                "unknown command `{name}`; run `bub --help` to list commands"
            ))
        })?;
        if command.trust_handling != TrustHandling::Manage {
            warn_if_untrusted(settings.trust_report());
        }
        if !command.allows_invalid_settings {
            if let Some(problem) = problems.first() {
                return Err(Error::invalid_input(problem.to_string()));
            }
            check_settings(&settings).map_err(Error::invalid_input)?;
        }
        let context = CommandContext {
            framework,
            matches,
            settings,
            logins,
            problems: Arc::new(SettingsProblems(problems)),
            launcher,
            plugin_prompt,
            bundled_channels: self.bundled_channels.into(),
            commands: commands.into(),
        };
        run_command(&command, context)
    }

    /// Prepares the command before the settings are read: asks the user to trust the workspace, if the command needs it.
    /// Returns the settings that its arguments set, and whether it needs the home.
    fn prepare_command(
        &self,
        args: &[OsString],
        workspace: Option<&Path>,
        trust: &WorkspaceTrust,
        report: &mut TrustReport,
    ) -> Result<(Vec<SettingFlag>, bool)> {
        let Some((command, matches)) = self.parse_own_command(args, workspace) else {
            return Ok((Vec::new(), false));
        };
        if command.trust_handling == TrustHandling::Ask
            && report.needs_answer()
            && prompt::has_terminal()
        {
            trust::ask_user(trust, report, &self.sections)?;
        }
        let flags = command.setting_flags.map(|read| read(&matches));
        Ok((flags.unwrap_or_default(), command.needs_home))
    }

    /// Parses the arguments of a command of the program that has to be known before the settings are read. External
    /// plugins are not loaded yet.
    fn parse_own_command(
        &self,
        args: &[OsString],
        workspace: Option<&Path>,
    ) -> Option<(&AppCommand, ArgMatches)> {
        let name = args::command_name(args)?;
        let mut commands = self.commands.iter();
        let command = commands.find(|command| command.name() == name)?;
        let is_needed = command.needs_home
            || command.setting_flags.is_some()
            || command.trust_handling == TrustHandling::Ask;
        if !is_needed {
            return None;
        }
        match args::parse(args, &self.commands, workspace, None) {
            ParsedArgs::Command(_, matches) => Some((command, matches)),
            _ => None,
        }
    }
}

/// Fails if the home cannot be written: what the user gets otherwise is an error about a file in it. Leaves nothing
/// behind.
fn check_home(settings: &Settings) -> Result<()> {
    let home = settings.home();
    // An unknown home is a problem of the settings, which the program reports later.
    if home.as_os_str().is_empty() || settings.get(&TAPE_STORAGE) == TapeStorage::Memory {
        return Ok(());
    }
    let existing = home
        .ancestors()
        .find(|path| path.symlink_metadata().is_ok());
    // A trailing dot follows symbolic links and needs a directory.
    let directory = existing.unwrap_or(home).join(".");
    let access = Access::WRITE_OK | Access::EXEC_OK;
    let is_writable = rustix::fs::access(&directory, access).map_err(std::io::Error::from);
    let is_writable = is_writable.and_then(|()| {
        if home.exists() {
            return Ok(());
        }
        // Some file systems, such as `/proc`, refuse only the directory itself.
        let probe = directory.join(format!(".bub-{}", std::process::id()));
        std::fs::create_dir(&probe).and_then(|()| std::fs::remove_dir(&probe))
    });
    is_writable.map_err(|error| {
        let home = home.display();
        Error::config(format!(
            "home {home} cannot be written: {error}; set BUB_HOME to a directory of your own"
        ))
    })
}

/// Logs the warnings of the settings, and sets the prefix of commands.
fn apply_settings(settings: &Settings) {
    for warning in settings.warnings() {
        tracing::warn!(reason = %warning, "settings.warning");
    }
    set_command_prefix(settings.get(&COMMAND_PREFIX));
}

/// Warns that files of the workspace are ignored, unless the user decided so.
fn warn_if_untrusted(report: &TrustReport) {
    if !report.is_trusted() && !report.is_declined {
        let (workspace, ignored) = (report.workspace.display(), report.ignored_text());
        let hint = "run `bub trust` to list and trust these files";
        tracing::warn!(%workspace, %ignored, hint, "workspace.untrusted");
    }
}

/// Returns the settings that every program has, in the order of `bub config list`.
///
/// A program that loads settings without an [`App`] passes these sections to [`Loader::sections`].
/// Plugins declare their settings with [`App::settings`].
pub fn core_sections() -> impl Iterator<Item = Section> {
    let sections = bub_model::settings::sections().into_iter();
    sections
        .chain(bub_agent::settings::sections())
        .chain(bub_gateway::settings::sections())
        .chain(bub_kernel::settings::sections())
        .chain(app_settings::sections())
}

/// Parses the arguments. Removes the fallback commands (see [`AppCommand::is_fallback`]) from
/// `commands` if the arguments name another command, or if the commands conflict.
fn parse_args(
    args: &[OsString],
    commands: &mut Vec<AppCommand>,
    workspace: Option<&Path>,
    message_command: Option<&str>,
) -> Result<ParsedArgs> {
    let parse = |commands: &[AppCommand]| {
        catch_unwind(AssertUnwindSafe(|| {
            args::parse(args, commands, workspace, message_command)
        }))
    };
    // Declarations of external plugins must not affect how the program's own commands are parsed.
    let word = args::command_name(args).unwrap_or_default();
    let is_own = |command: &AppCommand| !command.is_fallback() && command.has_name(word);
    if commands.iter().any(is_own) {
        commands.retain(|command| !command.is_fallback());
    }
    let parsed = parse(commands).or_else(|panic| {
        let hint = "rename the command in the plugin, or disable the plugin with `bub plugin disable NAME`";
        let error = describe_conflict(commands, &*panic);
        tracing::error!(error, hint, "plugin.commands_skipped");
        commands.retain(|command| !command.is_fallback());
        parse(commands)
    });
    // `commands` now has only commands that are compiled in.
    parsed.map_err(|panic| {
        Error::invalid_input(format!(
            "cannot use the commands of this program: {}; rename one where it is defined and rebuild the program",
            describe_conflict(commands, &*panic)
        ))
    })
}

/// Describes why the commands cannot be used together: a name that two commands share, or otherwise
/// the message of clap.
fn describe_conflict(commands: &[AppCommand], panic: &(dyn Any + Send)) -> String {
    for (index, command) in commands.iter().enumerate() {
        let mut names = std::iter::once(command.name()).chain(command.aliases());
        let mut earlier = commands.iter().take(index);
        if let Some(name) = names.find(|name| earlier.clone().any(|other| other.has_name(name)))
            && let Some(other) = earlier.find(|other| other.has_name(name))
        {
            return match (other.name(), command.name()) {
                (first, second) if first == second => format!("two commands are named `{name}`"),
                (first, second) => {
                    format!("the commands `{first}` and `{second}` both use the name `{name}`")
                }
            };
        }
    }
    let message = panic.downcast_ref::<String>().map(String::as_str);
    let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
    let line = message.and_then(|message| message.lines().next());
    line.unwrap_or("two commands or arguments have the same name")
        .to_owned()
}

/// Prints how to use a program without commands: as a plugin.
fn print_plugin_notice() -> ExitCode {
    let program = std::env::current_exe().unwrap_or_default();
    let program = bub_plugin::quote_for_shell(&program);
    let text =
        format!("this program is a plugin for bub; to use it, run: bub plugin add {program}\n");
    output::print(&text).unwrap_or(ExitCode::FAILURE)
}

/// Prints what to do next, or the help if the program has no such text.
fn print_next_steps(next_steps: Option<&str>, commands: &[AppCommand]) -> Result<ExitCode> {
    let help = || args::command_line(commands).render_help().to_string();
    output::print(&next_steps.map_or_else(help, str::to_owned))
}

fn parse_default_command(args: &[&str], commands: &[AppCommand]) -> Result<(String, ArgMatches)> {
    let line: Vec<_> = ["bub"].iter().chain(args).map(OsString::from).collect();
    match args::parse(&line, commands, None, None) {
        ParsedArgs::Command(name, matches) => Ok((name, matches)),
        _ => Err(Error::invalid_input(format!(
            "invalid default command `{}`: unknown command or arguments; correct the call of `App::default_command`",
            args.join(" ")
        ))),
    }
}

/// Prevents other processes of this user from reading the memory of this process.
///
/// Otherwise, on Linux, commands of the agent could read API keys from `/proc`. Errors are ignored,
/// because everything else works without this protection.
fn set_process_undumpable() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}

/// Returns the first problem in the structured settings `providers` and `policy`.
///
/// Without this check, bub would report an invalid provider only before the first model call, and an invalid policy
/// would silently deny everything.
#[doc(hidden)]
pub fn check_settings(settings: &Settings) -> Result<(), String> {
    bub_model::Catalog::new(settings).map_err(|problem| problem.to_string())?;
    bub_agent::policy::Policy::new(settings)
        .invalid_reason()
        .map_or(Ok(()), |problem| Err(problem.to_owned()))
}

fn run_command(command: &AppCommand, context: CommandContext) -> Result<ExitCode> {
    let threads = if command.is_multi_threaded {
        std::thread::available_parallelism()
            .map_or(1, usize::from)
            .clamp(2, 8)
    } else {
        1
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .map_err(|error| Error::unknown(format!("cannot start threads: {error}; raise the process limit (`ulimit -u`) or free memory")))?;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on((command.run)(context))
    }));
    // Background tasks must not keep the program from exiting.
    runtime.shutdown_background();
    // A question that the user has not answered must not leave the terminal without echo.
    bub_terminal::tty::restore();
    outcome.unwrap_or_else(|_| {
        Err(Error::unknown(
            "the command failed with an internal error (panic); see the log for details",
        ))
    })
}

/// Prints the error that ends the program, and returns its exit code.
fn report_error(error: &Error, bundled_plugins: &[&str], redactor: &Redactor) -> ExitCode {
    // Name hook and plugin only for plugins that are not part of the program.
    let is_bundled = |name: &str| name == BuiltinPlugin::NAME || bundled_plugins.contains(&name);
    let foreign = error.origin().filter(|origin| !is_bundled(&origin.plugin));
    let text = match foreign {
        Some(origin) => format!("{error} (hook {} of plugin {})", origin.hook, origin.plugin),
        None => error.message().to_owned(),
    };
    let text = redactor.redact(&text);
    // The error of a tool quotes the output of a command, which can have several lines.
    let text = if foreign.is_none() && error.kind() == ErrorKind::Tool {
        output::sanitize(text.trim_end()).into_owned()
    } else {
        output::sanitize_line(&text)
    };
    // A failed write to stderr is ignored: there is nowhere to report it.
    let _ = writeln!(std::io::stderr(), "error: {text}");
    ExitCode::from(match error.kind() {
        ErrorKind::Config | ErrorKind::InUse => EXIT_USAGE,
        ErrorKind::InvalidInput | ErrorKind::NotFound if error.origin().is_none() => EXIT_USAGE,
        // The user left at a question.
        ErrorKind::Cancelled => EXIT_INTERRUPTED,
        _ => EXIT_FAILURE,
    })
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    #[test]
    fn conflicting_commands_are_named() {
        let command =
            |command: Command| AppCommand::new(command, |_| async { Ok(ExitCode::SUCCESS) });
        let mut commands = vec![
            command(Command::new("deploy").alias("push")),
            command(Command::new("push")),
        ];
        let error = parse_args(&["bub".into(), "push".into()], &mut commands, None, None).err();
        assert_eq!(
            error.as_ref().map(Error::message),
            Some(
                "cannot use the commands of this program: the commands `deploy` and `push` both use the name `push`; \
                 rename one where it is defined and rebuild the program"
            )
        );
    }
}
