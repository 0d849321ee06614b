//! Parses the command line. The functions `workspace` and `verbosity` read single options before
//! the plugins add their commands.

use std::{
    ffi::{OsStr, OsString},
    io::IsTerminal as _,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use bub_kernel::{CommandArg, CommandArgs, CommandSpec};
use clap::{
    Arg, ArgAction, ArgMatches, Command,
    error::{ContextKind, ContextValue, ErrorKind},
    value_parser,
};
use serde_json::{Map, Value};

use crate::command::AppCommand;

/// The command that prints the help of the program.
const ROOT_HELP: &str = "bub --help";

/// List of exit codes at the end of the help.
const EXIT_CODES: &str = "\
Exit codes: 0 success, 1 failure, 2 invalid arguments or configuration, 124 timeout, 130 interrupted, 143 terminated";

/// Error for a `-w` that may belong to the command instead of the program.
const AMBIGUOUS_WORKSPACE: &str =
    "ambiguous `-w`: it may be an argument of the command; put `-w DIR` before the command";

/// Result of parsing the command line.
pub(crate) enum ParsedArgs {
    /// A command with its arguments.
    Command(String, ArgMatches),
    /// No command was given.
    Nothing,
    /// A text to print instead of running a command, such as the help.
    Print(String),
    /// The arguments are invalid. The text is the error in one line.
    Wrong(String),
}

/// Returns the first argument that is not an option: the name of the command.
pub(crate) fn command_name(args: &[OsString]) -> Option<&str> {
    args.get(command_index(args)?)?.to_str()
}

fn command_index(args: &[OsString]) -> Option<usize> {
    let mut remaining = args.iter().enumerate().skip(1);
    while let Some((index, arg)) = remaining.next() {
        if arg == "-w" || arg == "--workspace" {
            remaining.next();
        } else if !arg.as_bytes().starts_with(b"-") {
            return Some(index);
        }
    }
    None
}

/// Inserts a command before the first argument that is not an option, if that argument contains white space: it is a
/// message then, because the name of a command has none.
pub(crate) fn insert_message_command(args: &mut Vec<OsString>, command: &str) {
    let is_message = |name: &str| name.trim().contains(char::is_whitespace);
    if let Some(index) = command_index(args)
        && command_name(args).is_some_and(is_message)
    {
        args.insert(index, command.into());
    }
}

/// Parses the command line. `workspace` is the result of [`workspace()`] for these arguments. `message_command` is the
/// command that sends a message, if the program has one.
pub(crate) fn parse(
    args: &[OsString],
    commands: &[AppCommand],
    workspace: Option<&Path>,
    message_command: Option<&str>,
) -> ParsedArgs {
    match command_line(commands).try_get_matches_from_mut(args) {
        Ok(matches) => match matches.subcommand() {
            // The command may have read `-w` as its own argument.
            Some(_) if matches.get_one("workspace").map(PathBuf::as_path) != workspace => {
                ParsedArgs::Wrong(AMBIGUOUS_WORKSPACE.to_owned())
            }
            Some((name, command_matches)) => {
                ParsedArgs::Command(name.to_owned(), command_matches.clone())
            }
            None => ParsedArgs::Nothing,
        },
        Err(error) if error.use_stderr() => {
            let help = help_command(args, commands);
            let is_root = help == ROOT_HELP;
            let tip = message_tip(args, message_command.filter(|_| is_root));
            ParsedArgs::Wrong(format_parse_error(&error, &help, &tip))
        }
        Err(error) => ParsedArgs::Print(error.render().to_string()),
    }
}

/// Returns the clap command of the program. It adds the arguments of a command only if the command line names the command.
pub(crate) fn command_line(commands: &[AppCommand]) -> Command {
    let commands = commands.iter();
    root_command()
        .subcommands(commands.map(|command| command.command.clone().defer(command.add_args)))
}

/// Returns the clap command of the program with the arguments of all commands.
pub(crate) fn complete_command_line(commands: &[AppCommand]) -> Command {
    let commands = commands.iter();
    root_command().subcommands(commands.map(|command| (command.add_args)(command.command.clone())))
}

/// Converts the command of a plugin to a clap command.
pub(crate) fn to_clap_command(spec: &CommandSpec) -> Command {
    let command = Command::new(spec.name.clone()).about(spec.about.clone());
    if spec.raw {
        let argv = Arg::new(CommandSpec::RAW_ARG)
            .num_args(0..)
            .action(ArgAction::Append);
        let argv = argv.trailing_var_arg(true).allow_hyphen_values(true);
        return command.disable_help_flag(true).arg(argv);
    }
    command.args(spec.args.iter().map(to_clap_arg))
}

fn to_clap_arg(arg: &CommandArg) -> Arg {
    let mut clap_arg = Arg::new(arg.name.clone())
        .help(arg.help.clone())
        .required(arg.required);
    if !arg.positional {
        clap_arg = clap_arg.long(arg.name.clone());
    }
    if arg.flag {
        return clap_arg.action(ArgAction::SetTrue);
    }
    let action = if arg.many {
        ArgAction::Append
    } else {
        ArgAction::Set
    };
    clap_arg
        .action(action)
        .default_values(&arg.default)
        .value_name(arg.name.to_uppercase())
}

/// Converts the arguments of a plugin's command, parsed by clap, to [`CommandArgs`].
pub(crate) fn to_command_args(spec: &CommandSpec, matches: &ArgMatches) -> CommandArgs {
    let value = |arg: &CommandArg| {
        if arg.flag {
            return Value::from(matches.get_flag(&arg.name));
        }
        let values = matches.get_many::<String>(&arg.name);
        let mut values = values.into_iter().flatten().map(String::as_str);
        if arg.many {
            values.collect()
        } else {
            Value::from(values.next())
        }
    };
    let raw = CommandArg {
        name: CommandSpec::RAW_ARG.to_owned(),
        many: true,
        ..CommandArg::default()
    };
    let raw = spec.raw.then_some(&raw);
    let args = spec.args.iter().filter(|_| !spec.raw).chain(raw);
    let args: Map<_, _> = args.map(|arg| (arg.name.clone(), value(arg))).collect();
    args.into()
}

fn root_command() -> Command {
    Command::new("bub")
        .about("An agent runtime built on hooks and append-only session tapes")
        .version(env!("CARGO_PKG_VERSION"))
        .term_width(help_width())
        .after_help(EXIT_CODES)
        .subcommand_value_name("COMMAND")
        .arg(
            Arg::new("workspace")
                .short('w')
                .long("workspace")
                .value_name("DIR")
                .value_parser(value_parser!(PathBuf))
                .global(true)
                .help("Directory the agent works in [default: current directory]"),
        )
        .arg(
            Arg::new("verbose")
                .short('v')
                .long("verbose")
                .action(ArgAction::Count)
                .global(true)
                .help("Increase log verbosity (-v info, -vv debug, -vvv trace)"),
        )
}

/// Returns the width at which help is wrapped between words: that of the terminal. In a pipe, 0: no line is wrapped.
fn help_width() -> usize {
    if std::io::stdout().is_terminal() {
        bub_terminal::tty::size().columns
    } else {
        0
    }
}

/// Returns the workspace in the arguments, without parsing the rest of the command line.
///
/// Plugins get the workspace when they are created, before their commands are known.
pub(crate) fn workspace(args: &[OsString]) -> Option<PathBuf> {
    let mut workspace = None;
    let mut remaining = args.iter().skip(1);
    while let Some(arg) = remaining.next() {
        if arg == "--" {
            break;
        }
        if arg == "-w" || arg == "--workspace" {
            workspace = remaining.next().map(PathBuf::from);
        } else if let Some(value) = attached_workspace(arg) {
            workspace = Some(value);
        }
    }
    workspace
}

/// Returns how often `-v` was given, without parsing the rest of the command line.
///
/// Plugins may log when they are created, before their commands are known.
pub(crate) fn verbosity(args: &[OsString]) -> u64 {
    let count = |arg: &OsString| match arg.as_bytes() {
        b"--verbose" => 1,
        [b'-', letters @ ..] if letters.iter().all(|letter| *letter == b'v') => {
            letters.len() as u64
        }
        _ => 0,
    };
    let options = args.iter().skip(1).take_while(|arg| *arg != "--");
    options.map(count).sum()
}

/// Returns the workspace in an argument such as `--workspace=DIR` or `-wDIR`.
fn attached_workspace(arg: &OsStr) -> Option<PathBuf> {
    let bytes = arg.as_bytes();
    let value = bytes
        .strip_prefix(b"--workspace=")
        .or_else(|| bytes.strip_prefix(b"-w"))?;
    let value = value.strip_prefix(b"=").unwrap_or(value);
    Some(PathBuf::from(OsStr::from_bytes(value)))
}

/// Checks that a path is a directory, so that it can be the workspace.
pub fn check_workspace(workspace: &Path) -> Result<(), String> {
    let path = workspace.display();
    match workspace.canonicalize().and_then(std::fs::metadata) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(format!(
            "workspace `{path}` is not a directory; use another directory"
        )),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(format!(
            "workspace `{path}` does not exist; create it or use another directory"
        )),
        Err(error) => Err(format!(
            "cannot use workspace `{path}`: {error}; check its permissions or use another directory"
        )),
    }
}

/// Formats an error of clap in one line: the error, its tips, and the help command.
fn format_parse_error(error: &clap::Error, help: &str, message_tip: &str) -> String {
    if error.kind() == ErrorKind::InvalidUtf8 {
        return "invalid argument: an argument is not valid UTF-8; pass text in UTF-8".to_owned();
    }
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
    {
        let tip = subcommand_tip(error, word, message_tip);
        return format!("unrecognized subcommand '{word}'{tip}; see `{help}`");
    }
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n").map(collapse_whitespace);
    let message = paragraphs.next().unwrap_or_default();
    let mut line = message
        .strip_prefix("error: ")
        .unwrap_or(&message)
        .to_owned();
    for tip in paragraphs.filter(|paragraph| paragraph.starts_with("tip: ")) {
        line.extend(["; ", &tip]);
    }
    format!("{line}; see `{help}`")
}

/// Returns the tip about an unknown subcommand: a subcommand of which it is a typo, or else `message_tip`. Clap also
/// suggests words that share a few letters.
fn subcommand_tip(error: &clap::Error, word: &str, message_tip: &str) -> String {
    let names = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(names)) => names.as_slice(),
        Some(ContextValue::String(name)) => std::slice::from_ref(name),
        _ => &[],
    };
    match bub_settings::closest_match(word, names.iter().map(String::as_str)) {
        Some(name) => format!("; tip: a similar subcommand exists: '{name}'"),
        None => message_tip.to_owned(),
    }
}

/// Returns the tip for arguments that are the words of a message, if the program has a command for messages.
fn message_tip(args: &[OsString], message_command: Option<&str>) -> String {
    let words = command_index(args).and_then(|index| args.get(index..));
    let words = words.into_iter().flatten();
    let words: Option<Vec<&str>> = words.map(|word| word.to_str()).collect();
    let message = words.unwrap_or_default().join(" ");
    match message_command {
        Some(command) if !message.is_empty() => {
            let message = bub_plugin::quote_for_shell(Path::new(&message));
            format!("; tip: to send it as a message, run `bub {command} {message}`")
        }
        _ => String::new(),
    }
}

/// Returns the `--help` command that an error about `args` recommends. It is the help of the command or subcommand in
/// `args`, or of the program if `args` contains no known command.
fn help_command(args: &[OsString], commands: &[AppCommand]) -> String {
    let mut words = args.iter().skip(1).filter_map(|arg| arg.to_str());
    let command = words.find_map(|word| commands.iter().find(|command| command.has_name(word)));
    let Some(command) = command else {
        return ROOT_HELP.to_owned();
    };
    let mut path = vec!["bub", command.name()];
    let complete = (command.add_args)(command.command.clone());
    let mut group = &complete;
    for word in words {
        if let Some(subcommand) = group.find_subcommand(word) {
            path.push(subcommand.get_name());
            group = subcommand;
        }
    }
    path.join(" ") + " --help"
}

fn collapse_whitespace(paragraph: &str) -> String {
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}
