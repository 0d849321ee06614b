//! `bub tape`: lists, shows, searches, forks, exports and repairs tapes.

mod check;
mod conversation;
mod export;
mod fork;
mod list;
mod prune;
mod search;
mod show;
pub(super) mod text;
mod verify;
mod workspace_tapes;
mod writer;

use std::process::ExitCode;

use bub::CommandContext;
use bub_kernel::{Error, Result};
use bub_tape::{EntryKind, TapeError, TapeErrorKind};
use clap::{Args, Subcommand};

use self::workspace_tapes::{HomeTapes, WorkspaceTapes};

/// List, show, search, fork, export, and repair tapes
///
/// TAPE is a session id, a tape name, or a unique prefix of either.
#[derive(Args)]
#[command(disable_help_subcommand = true)]
pub(super) struct TapeArgs {
    #[command(subcommand)]
    command: TapeCommand,
}

#[derive(Subcommand)]
enum TapeCommand {
    #[command(flatten)]
    OnStore(StoreCommand),
    #[command(flatten)]
    OnFiles(FileCommand),
}

// Commands that work on the tape store of the program. A doc comment would replace the help of the command.
#[derive(Subcommand)]
enum StoreCommand {
    List(list::ListArgs),
    Show(show::ShowArgs),
    Search(search::SearchArgs),
    /// List the anchors of a tape
    Anchors(show::SummaryArgs),
    /// Show statistics of a tape
    Info(show::SummaryArgs),
    Fork(fork::ForkArgs),
    Export(export::ExportArgs),
}

// Commands that work on the files of the home, even if a plugin provides another store.
#[derive(Subcommand)]
enum FileCommand {
    Check(check::CheckArgs),
    Verify(verify::VerifyArgs),
    Reindex(check::ReindexArgs),
    Prune(prune::PruneArgs),
}

const KINDS_HELP: &str = "Only entries of these kinds: message, system, anchor, tool_call, tool_result, event, error, or any other";

pub(super) async fn run(context: CommandContext, args: TapeArgs) -> Result<ExitCode> {
    let (framework, settings) = (&context.framework, &context.settings);
    let outcome = match args.command {
        TapeCommand::OnFiles(command) => {
            let files = HomeTapes::new(framework, settings);
            match command {
                FileCommand::Check(args) => check::check(&files, args).await,
                FileCommand::Verify(args) => verify::run(&files, args).await,
                FileCommand::Reindex(args) => check::reindex(&files, args).await,
                FileCommand::Prune(args) => prune::run(&files, args).await,
            }
        }
        TapeCommand::OnStore(command) => {
            let work = async {
                let tapes = WorkspaceTapes::open(framework, settings)?;
                Ok(match command {
                    StoreCommand::List(args) => list::run(&tapes, args).await,
                    StoreCommand::Show(args) => show::run(&tapes, args).await,
                    StoreCommand::Search(args) => search::run(&tapes, args).await,
                    StoreCommand::Anchors(args) => show::list_anchors(&tapes, args).await,
                    StoreCommand::Info(args) => show::show_info(&tapes, args).await,
                    StoreCommand::Fork(args) => fork::run(&tapes, args).await,
                    StoreCommand::Export(args) => export::run(&tapes, args).await,
                })
            };
            framework.run_scoped(work).await?
        }
    };
    outcome.map_err(command_error)
}

/// Converts errors in the arguments, such as an unknown tape, to usage errors.
fn command_error(error: TapeError) -> Error {
    match error.kind() {
        TapeErrorKind::InvalidInput | TapeErrorKind::NotFound => {
            Error::invalid_input(error.to_string())
        }
        _ => Error::from_boxed(error.into()),
    }
}

fn entry_kinds(names: &[String]) -> Vec<EntryKind> {
    let names = names.iter().map(|name| name.trim());
    names.map(EntryKind::from).collect()
}
