//! `bub pair`: grants access to users who received a pairing code from a channel.

use std::process::ExitCode;

use bub::CommandContext;
use bub_gateway::pairing::Pairings;
use bub_kernel::Result;

use super::listing::Listing;

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
    let mut listing = Listing::default();
    match args.command {
        Some(PairCommand::Remove { user }) => {
            pairings.remove(&user)?;
            listing.row(format!("removed {user}"));
        }
        Some(PairCommand::List) => listing = list_pairings(&pairings)?,
        None => {
            let user = pairings.accept_code(&args.code.unwrap_or_default(), args.owner)?;
            let (channel, id, name) = (&user.channel, &user.id, &user.name);
            let role = user.role().name();
            listing.row(format!("added {channel}:{id} ({name}) as {role}"));
        }
    }
    listing.print()
}

fn list_pairings(pairings: &Pairings) -> Result<Listing> {
    let (users, requests) = pairings.users_and_requests()?;
    let mut listing = Listing::default();
    for user in users {
        let (channel, id, name) = (&user.channel, &user.id, &user.name);
        listing.row(format!("{channel}:{id} {} {name}", user.role().name()));
    }
    for request in requests {
        listing.row(format!(
            "{}:{} pending, code {} {}",
            request.channel, request.id, request.code, request.name
        ));
    }
    Ok(listing.or_row("no paired users or pending requests"))
}
