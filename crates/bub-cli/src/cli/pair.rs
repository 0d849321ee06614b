//! `bub pair`: lets people in who were given a code by a channel.

use std::{fmt::Write as _, process::ExitCode};

use bub::{AppCommand, CommandContext};
use bub_gateway::pairing::Pairings;
use bub_kernel::Result;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::output;

pub(super) fn command() -> AppCommand {
    let command = Command::new("pair")
        .about("Grant a user access with a pairing code")
        .long_about(
            "Grant a user access with a pairing code. An unknown user who writes to a channel receives a code. \
             `bub pair CODE` grants that user the member role, or with `--owner` the owner role, which allows everything. \
             A running gateway applies the change immediately.",
        )
        .args_conflicts_with_subcommands(true)
        .subcommand_negates_reqs(true)
        .arg(Arg::new("code").value_name("CODE").required(true).help("Code that the user received"))
        .arg(Arg::new("owner").long("owner").action(ArgAction::SetTrue).help("Grant the owner role"))
        .subcommand(Command::new("list").about("List paired users and pending requests"))
        .subcommand(
            Command::new("remove").about("Remove a user or a pending request").arg(
                Arg::new("who").value_name("CHANNEL:ID").required(true).help("User from `bub pair list`"),
            ),
        );
    AppCommand::new(command, run)
}

async fn run(context: CommandContext) -> Result<ExitCode> {
    let pairings = Pairings::new(context.settings.home());
    let text = |matches: &ArgMatches, name: &str| {
        matches.get_one::<String>(name).cloned().unwrap_or_default()
    };
    let report = match context.matches.subcommand() {
        Some(("remove", matches)) => {
            let who = text(matches, "who");
            pairings.remove(&who)?;
            format!("{} is not let in any more\n", output::one_line(&who))
        }
        Some(_) => list(&pairings)?,
        None => {
            let is_owner = context.matches.get_flag("owner");
            let person = pairings.accept(&text(&context.matches, "code"), is_owner)?;
            let what = if is_owner { "an owner" } else { "a member" };
            format!(
                "{}:{} ({}) is {what} now\n",
                person.channel, person.id, person.name
            )
        }
    };
    output::print_text(&report)
}

fn list(pairings: &Pairings) -> Result<String> {
    let (people, waiting) = pairings.all()?;
    let mut text = String::new();
    for person in people {
        let _ = writeln!(
            text,
            "{}:{} {} {}",
            person.channel,
            person.id,
            person.role().name(),
            person.name
        );
    }
    for waiting in waiting {
        let _ = writeln!(
            text,
            "{}:{} waits with code {} {}",
            waiting.channel, waiting.id, waiting.code, waiting.name
        );
    }
    Ok(if text.is_empty() {
        "(nobody was let in by `bub pair`, and nobody waits)\n".to_owned()
    } else {
        text
    })
}
