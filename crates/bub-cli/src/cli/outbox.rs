//! `bub outbox`: lists, retries and drops undelivered replies.

use std::{process::ExitCode, sync::Arc};

use bub::CommandContext;
use bub_gateway::status::{edit_offline_outbox, send_request};
use bub_kernel::{Error, Result};
use bub_tape::fs::RealFs;
use bub_terminal::Style;
use serde_json::{Value, json};

use super::{
    gateway,
    listing::{Listing, cell},
    output,
    status::{count, items, text},
};

#[derive(clap::Args)]
pub(super) struct OutboxArgs {
    /// Gateway name, if several share one home
    #[arg(long, global = true, default_value = "main", value_parser = gateway::parse_name)]
    name: String,
    #[command(subcommand)]
    action: OutboxAction,
}

#[derive(clap::Subcommand)]
enum OutboxAction {
    /// List undelivered replies
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Retry delivery of a reply
    Retry {
        /// Reply id from `bub outbox list`
        id: String,
    },
    /// Discard a reply
    Drop {
        /// Reply id from `bub outbox list`
        id: String,
    },
}

pub(super) async fn run(context: CommandContext, args: OutboxArgs) -> Result<ExitCode> {
    let settings = &context.settings;
    let directory = bub_gateway::gateway_directory(settings, &args.name);
    let request = match &args.action {
        OutboxAction::List { .. } => json!({"do": "outbox"}),
        OutboxAction::Retry { id } => json!({"do": "retry", "id": id}),
        OutboxAction::Drop { id } => json!({"do": "drop", "id": id}),
    };
    let answer = match (send_request(&directory, &request).await?, &args.action) {
        (Some(answer), _) => answer,
        (None, _) if directory.exists() => {
            let durability = bub_gateway::journal_durability(settings);
            edit_offline_outbox(Arc::new(RealFs), &directory, durability, &request).await?
        }
        // Listing must not create a journal.
        (None, OutboxAction::List { .. }) => json!({"replies": []}),
        (None, OutboxAction::Retry { id } | OutboxAction::Drop { id }) => {
            return Err(Error::not_found(format!(
                "unknown reply `{id}`; run `bub outbox list` to see undelivered replies"
            )));
        }
    };
    let mut listing = Listing::default();
    match args.action {
        OutboxAction::Retry { id } => listing.row(format!("retrying {id}")),
        OutboxAction::Drop { id } => listing.row(format!("dropped {id}")),
        OutboxAction::List { json: true } => {
            return output::print_untrusted(&format!("{answer}\n"));
        }
        OutboxAction::List { json: false } => listing = list_replies(&answer),
    }
    listing.print(settings)
}

fn list_replies(answer: &Value) -> Listing {
    let mut listing = Listing::default();
    for reply in items(&answer["replies"]) {
        let (channel, chat) = (text(&reply["channel"]), text(&reply["chat"]));
        let state = text(&reply["state"]);
        let style = match state {
            "failed" => Style::RED,
            _ => Style::YELLOW,
        };
        listing.styled_row([
            cell(text(&reply["id"]), Style::BOLD),
            cell(format!(" {channel}:{chat} "), Style::NONE),
            cell(state, style),
            cell(
                format!(
                    ", {} s old, {} attempts, {}: {}",
                    count(&reply["age_seconds"]),
                    count(&reply["attempts"]),
                    text(&reply["error"]),
                    text(&reply["text"]),
                ),
                Style::NONE,
            ),
        ]);
    }
    listing.or_row("no undelivered replies")
}
