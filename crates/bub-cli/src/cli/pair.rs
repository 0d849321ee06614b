//! `bub pair`: grants access to users who received a pairing code from a channel.

use std::process::ExitCode;

use bub::CommandContext;
use bub_gateway::pairing::Pairings;
use bub_kernel::Result;
use bub_terminal::Style;
use serde_json::json;

use super::{
    listing::{Listing, Table, cell},
    output,
};

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
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
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
        Some(PairCommand::List { json: true }) => {
            let (users, requests) = pairings.users_and_requests()?;
            let users = users.iter().map(|user| {
                json!({"channel": user.channel, "id": user.id, "name": user.name, "role": user.role().name(), "code": null})
            });
            let requests = requests.iter().map(|request| {
                json!({"channel": request.channel, "id": request.id, "name": request.name, "role": null, "code": request.code})
            });
            let lines = users.chain(requests).map(|line| format!("{line}\n"));
            return output::print_untrusted(&lines.collect::<String>());
        }
        Some(PairCommand::List { json: false }) => listing = list_pairings(&pairings)?,
        None => {
            let user = pairings.accept_code(&args.code.unwrap_or_default(), args.owner)?;
            let (channel, id, name) = (&user.channel, &user.id, &user.name);
            let role = user.role().name();
            listing.row(format!("added {channel}:{id} ({name}) as {role}"));
        }
    }
    listing.print(&context.settings)
}

fn list_pairings(pairings: &Pairings) -> Result<Listing> {
    let (users, requests) = pairings.users_and_requests()?;
    let mut table = Table::default();
    for user in users {
        table.row([
            cell(format!("{}:{}", user.channel, user.id), Style::BOLD),
            cell(user.role().name(), Style::GREEN),
            cell(user.name, Style::NONE),
        ]);
    }
    for request in requests {
        table.row([
            cell(format!("{}:{}", request.channel, request.id), Style::BOLD),
            cell(format!("pending, code {}", request.code), Style::YELLOW),
            cell(request.name, Style::NONE),
        ]);
    }
    Ok(Listing::from(table).or_row("no paired users or pending requests"))
}
