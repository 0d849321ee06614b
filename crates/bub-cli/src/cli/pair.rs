//! `bub pair`: grants access to users who received a pairing code from a channel.

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
                Arg::new("user").value_name("CHANNEL:ID").required(true).help("User from `bub pair list`"),
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
            let user = text(matches, "user");
            pairings.remove(&user)?;
            format!("removed {}\n", output::sanitize_line(&user))
        }
        Some(_) => pairings_text(&pairings)?,
        None => {
            let is_owner = context.matches.get_flag("owner");
            let user = pairings.accept_code(&text(&context.matches, "code"), is_owner)?;
            let role = user.role().name();
            format!(
                "added {}:{} ({}) as {role}\n",
                user.channel, user.id, user.name
            )
        }
    };
    output::print_untrusted(&report)
}

fn pairings_text(pairings: &Pairings) -> Result<String> {
    let (users, requests) = pairings.users_and_requests()?;
    let mut text = String::new();
    for user in users {
        let _ = writeln!(
            text,
            "{}:{} {} {}",
            user.channel,
            user.id,
            user.role().name(),
            user.name
        );
    }
    for request in requests {
        let _ = writeln!(
            text,
            "{}:{} pending, code {} {}",
            request.channel, request.id, request.code, request.name
        );
    }
    Ok(if text.is_empty() {
        "no paired users or pending requests\n".to_owned()
    } else {
        text
    })
}
