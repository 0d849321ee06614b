//! `bub tape`: lists, shows, searches, forks, exports and repairs tapes.

mod anchors;
mod check;
mod color;
mod export;
mod find;
mod fork;
mod info;
mod list;
mod markdown;
mod payload;
mod progress;
mod prune;
mod reindex;
mod search;
mod show;
pub(super) mod text;
mod workspace_tapes;
mod writer;

use std::{io::Write, process::ExitCode};

use bub::{AppCommand, CommandContext};
use bub_kernel::Error;
use bub_settings::Settings;
use bub_tape::{EntryKind, Result, TapeError, TapeErrorKind};
use clap::{ArgMatches, Command};

use self::workspace_tapes::{HomeTapes, WorkspaceTapes};

/// Exit code for invalid arguments.
const EXIT_USAGE: u8 = 2;

pub(super) fn command() -> AppCommand {
    let command = Command::new("tape")
        .about("List, show, search, fork, export, and repair tapes")
        .long_about(
            "List, show, search, fork, export, and repair tapes. TAPE is a session id, a tape name, or a unique prefix of \
             either.",
        )
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .subcommand(list::command())
        .subcommand(show::command())
        .subcommand(search::command())
        .subcommand(anchors::command())
        .subcommand(info::command())
        .subcommand(fork::command())
        .subcommand(export::command())
        .subcommand(check::command())
        .subcommand(reindex::command())
        .subcommand(prune::command());
    AppCommand::new(command, run)
}

async fn run(context: CommandContext) -> bub_kernel::Result<ExitCode> {
    let framework = &context.framework;
    let settings = &context.settings;
    let Some((name, matches)) = context.matches.subcommand() else {
        return Ok(ExitCode::from(EXIT_USAGE));
    };
    let outcome = match name {
        // These work on the files of the home, even if a plugin provides another store.
        "check" | "reindex" | "prune" => {
            run_on_files(name, &HomeTapes::new(framework, settings), matches).await
        }
        _ => {
            let work = async {
                Ok(run_on_store(name, &WorkspaceTapes::open(framework, settings)?, matches).await)
            };
            framework.run_scoped(work).await?
        }
    };
    outcome.or_else(|error| report_error(error, settings))
}

async fn run_on_store(
    name: &str,
    tapes: &WorkspaceTapes,
    matches: &ArgMatches,
) -> Result<ExitCode> {
    match name {
        "list" => list::run(tapes, matches).await,
        "show" => show::run(tapes, matches).await,
        "search" => search::run(tapes, matches).await,
        "anchors" => anchors::run(tapes, matches).await,
        "info" => info::run(tapes, matches).await,
        "fork" => fork::run(tapes, matches).await,
        _ => export::run(tapes, matches).await,
    }
}

async fn run_on_files(name: &str, files: &HomeTapes, matches: &ArgMatches) -> Result<ExitCode> {
    match name {
        "check" => check::run(files, matches).await,
        "reindex" => reindex::run(files, matches).await,
        _ => prune::run(files, matches).await,
    }
}

/// Reports errors in the arguments with exit code 2, and all other errors as a failure of the command.
fn report_error(error: TapeError, settings: &Settings) -> bub_kernel::Result<ExitCode> {
    if !matches!(
        error.kind(),
        TapeErrorKind::InvalidInput | TapeErrorKind::NotFound
    ) {
        return Err(Error::from_boxed(error.into()));
    }
    let line = text::sanitize_line(&error.to_string());
    let _ = writeln!(
        std::io::stderr(),
        "error: {}",
        settings.redactor().redact(&line)
    );
    Ok(ExitCode::from(EXIT_USAGE))
}

/// Prints a note to stderr.
fn print_note(text: &str) {
    // Ignore errors: stderr is closed and there is nowhere to report them.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Returns the argument that names a tape.
fn tape_arg() -> clap::Arg {
    clap::Arg::new("tape")
        .value_name("TAPE")
        .required(true)
        .help("Session id, tape name, or a unique prefix")
}

fn json_arg() -> clap::Arg {
    flag_arg("json", "Print JSON")
}

fn flag_arg(name: &'static str, help: &'static str) -> clap::Arg {
    clap::Arg::new(name)
        .long(name)
        .action(clap::ArgAction::SetTrue)
        .help(help)
}

fn kinds_arg() -> clap::Arg {
    clap::Arg::new("kinds").long("kinds").value_name("KIND,…").value_delimiter(',').action(clap::ArgAction::Append).help(
        "Only entries of these kinds: message, system, anchor, tool_call, tool_result, event, error, or any other",
    )
}

/// Returns the kinds from `--kinds`. An empty list means all kinds.
fn selected_kinds(matches: &ArgMatches) -> Vec<EntryKind> {
    matches
        .get_many::<String>("kinds")
        .into_iter()
        .flatten()
        .map(|kind| EntryKind::from(kind.trim()))
        .collect()
}

/// Returns the value of a text argument.
fn text_arg<'a>(matches: &'a ArgMatches, name: &str) -> Option<&'a str> {
    matches.get_one::<String>(name).map(String::as_str)
}
