//! `bub pair`: grants access to users who received a pairing code from a channel.

use std::{fmt::Write as _, process::ExitCode};

use bub::CommandContext;
use bub_gateway::pairing::Pairings;
use bub_kernel::Result;

use super::output;

/// Grant a user access with a pairing code
///
/// An unknown user who writes to a channel receives a code. `bub pair CODE` grants that user the member role, or with
/// `--owner` the owner role, which allows everything. A running gateway applies the change immediately.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct PairArgs {
    /// Code that the user received
    #[arg(required = true)]
    code: Option<String>,
    /// Grant the owner role
    #[arg(long)]
    owner: bool,
    #[command(subcommand)]
    command: Option<PairCommand>,
}

#[derive(clap::Subcommand)]
enum PairCommand {
    /// List paired users and pending requests
    List,
    /// Remove a user or a pending request
    Remove {
        /// User from `bub pair list`
        #[arg(value_name = "CHANNEL:ID")]
        user: String,
    },
}

pub(super) async fn run(context: CommandContext, args: PairArgs) -> Result<ExitCode> {
    let pairings = Pairings::new(context.settings.home());
    let report = match args.command {
        Some(PairCommand::Remove { user }) => {
            pairings.remove(&user)?;
            format!("removed {}\n", output::sanitize_line(&user))
        }
        Some(PairCommand::List) => pairings_text(&pairings)?,
        None => {
            let user = pairings.accept_code(&args.code.unwrap_or_default(), args.owner)?;
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
        let (channel, id, name) = (&user.channel, &user.id, &user.name);
        let _ = writeln!(text, "{channel}:{id} {} {name}", user.role().name());
    }
    for request in requests {
        let _ = writeln!(
            text,
            "{}:{} pending, code {} {}",
            request.channel, request.id, request.code, request.name
        );
    }
    if text.is_empty() {
        text.push_str("no paired users or pending requests\n");
    }
    Ok(text)
}
