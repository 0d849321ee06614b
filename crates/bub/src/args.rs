//! Parses the command line before and after the commands are known.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use bub_kernel::{CommandArg, CommandArgs, CommandSpec, CommandValue};
use clap::{Arg, ArgAction, ArgMatches, Command, error::ErrorKind, value_parser};

use crate::command::AppCommand;

const EXIT_CODES: &str = "\
Exit codes: 0 success, 1 failure, 2 invalid arguments or configuration, 130 interrupted, 143 terminated";

const AMBIGUOUS_WORKSPACE: &str =
    "ambiguous `-w`: it may be an argument of the command; put `-w DIR` before the command";

/// Result of parsing the command line.
pub(crate) enum ParsedArgs {
    /// A command with its arguments.
    Command(String, ArgMatches),
    /// No command was given.
    Nothing,
    /// A text to print before exiting.
    Print(String),
    /// One line that explains the invalid arguments.
    Wrong(String),
}

/// Returns the name of the command. Called before the commands are collected.
pub(crate) fn command_name(args: &[OsString]) -> Option<&str> {
    let mut remaining = args.iter().skip(1);
    while let Some(arg) = remaining.next() {
        if arg == "-w" || arg == "--workspace" {
            remaining.next();
        } else if !arg.as_bytes().starts_with(b"-") {
            return arg.to_str();
        }
    }
    None
}

/// Parses the command line with the commands of plugins. `workspace` is the workspace that was
/// determined before.
pub(crate) fn parse(
    args: &[OsString],
    commands: &[AppCommand],
    workspace: Option<&Path>,
) -> ParsedArgs {
    match command_line(commands).try_get_matches_from_mut(args) {
        Ok(matches) => match matches.subcommand() {
            // The command of a plugin may define its own `-w`.
            Some(_)
                if matches
                    .get_one::<PathBuf>("workspace")
                    .map(PathBuf::as_path)
                    != workspace =>
            {
                ParsedArgs::Wrong(AMBIGUOUS_WORKSPACE.to_owned())
            }
            Some((name, command_matches)) => {
                ParsedArgs::Command(name.to_owned(), command_matches.clone())
            }
            None => ParsedArgs::Nothing,
        },
        Err(error) if error.use_stderr() => {
            ParsedArgs::Wrong(format_parse_error(&error, &help_command(args, commands)))
        }
        Err(error) => ParsedArgs::Print(error.render().to_string()),
    }
}

/// Returns the complete command line.
pub(crate) fn command_line(commands: &[AppCommand]) -> Command {
    commands.iter().fold(root_command(), |root, command| {
        root.subcommand(command.command.clone())
    })
}

/// Converts a plugin's command to a clap command.
pub(crate) fn to_clap_command(spec: &CommandSpec) -> Command {
    Command::new(spec.name.clone())
        .about(spec.about.clone())
        .args(spec.args.iter().map(to_clap_arg))
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
    if let Some(default) = &arg.default {
        clap_arg = clap_arg.default_value(default.clone());
    }
    let action = if arg.many {
        ArgAction::Append
    } else {
        ArgAction::Set
    };
    clap_arg.action(action).value_name(arg.name.to_uppercase())
}

/// Converts the arguments of a plugin's command from clap.
pub(crate) fn to_command_args(spec: &CommandSpec, matches: &ArgMatches) -> CommandArgs {
    let value = |arg: &CommandArg| {
        if arg.flag {
            return CommandValue::Flag(matches.get_flag(&arg.name));
        }
        let values = matches.get_many::<String>(&arg.name);
        let mut values = values.into_iter().flatten().cloned();
        if arg.many {
            CommandValue::Many(values.collect())
        } else {
            CommandValue::Text(values.next())
        }
    };
    let args = spec.args.iter();
    args.map(|arg| (arg.name.clone(), value(arg))).collect()
}

fn root_command() -> Command {
    Command::new("bub")
        .about("An agent runtime built on hooks and append-only session tapes")
        .version(env!("CARGO_PKG_VERSION"))
        // The terminal wraps lines; help is the same in a pipe and with any set of clap's features.
        .term_width(0)
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

/// Returns the workspace. Called before plugins exist, because they get it when they are created.
///
/// The rest of the command line is checked later.
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

/// Returns how often `-v` was given. Called before plugins exist, because they log when they are
/// created.
pub(crate) fn verbosity(args: &[OsString]) -> u64 {
    let count = |arg: &OsString| match arg.as_bytes() {
        b"--verbose" => 1,
        [b'-', letters @ ..] if letters.iter().all(|letter| *letter == b'v') => {
            letters.len() as u64
        }
        _ => 0,
    };
    args.iter()
        .skip(1)
        .take_while(|arg| *arg != "--")
        .map(count)
        .sum()
}

fn attached_workspace(arg: &OsStr) -> Option<PathBuf> {
    let bytes = arg.as_bytes();
    let value = bytes
        .strip_prefix(b"--workspace=")
        .or_else(|| bytes.strip_prefix(b"-w"))?;
    Some(PathBuf::from(OsStr::from_bytes(
        value.strip_prefix(b"=").unwrap_or(value),
    )))
}

/// Returns an error if a directory cannot be the workspace.
pub(crate) fn check_workspace(workspace: &Path) -> Result<(), String> {
    match workspace.canonicalize().and_then(std::fs::metadata) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(format!(
            "workspace `{}` is not a directory; use another directory",
            workspace.display()
        )),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(format!(
            "workspace `{}` does not exist; create it or use another directory",
            workspace.display()
        )),
        Err(error) => Err(format!(
            "workspace `{}` cannot be used: {error}",
            workspace.display()
        )),
    }
}

/// Formats an error of the parser in one line: the error, a suggestion, and where to find help.
fn format_parse_error(error: &clap::Error, help: &str) -> String {
    if error.kind() == ErrorKind::InvalidUtf8 {
        return "an argument is not valid UTF-8".to_owned();
    }
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n").map(collapse_whitespace);
    let message = paragraphs.next().unwrap_or_default();
    let mut line = message
        .strip_prefix("error: ")
        .unwrap_or(&message)
        .to_owned();
    for tip in paragraphs.filter(|paragraph| paragraph.starts_with("tip: ")) {
        line.push_str("; ");
        line.push_str(&tip);
    }
    format!("{line}; see `{help}`")
}

/// Returns the help command for the input: of the command if it exists, else of the program.
fn help_command(args: &[OsString], commands: &[AppCommand]) -> String {
    let is_known = |arg: &&OsString| commands.iter().any(|command| *arg == command.name());
    match args.iter().skip(1).find(is_known) {
        Some(command) => format!("bub {} --help", command.display()),
        None => "bub --help".to_owned(),
    }
}

fn collapse_whitespace(paragraph: &str) -> String {
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}
