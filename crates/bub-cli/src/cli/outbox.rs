//! `bub outbox`: lists, retries and drops undelivered replies.

use std::{fmt::Write as _, process::ExitCode, sync::Arc};

use bub::{AppCommand, CommandContext};
use bub_gateway::status;
use bub_kernel::{Error, Result};
use bub_tape::fs::RealFs;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};

use super::{gateway, output};

pub(super) fn command() -> AppCommand {
    let id = || {
        Arg::new("id")
            .value_name("ID")
            .required(true)
            .help("Reply id from `bub outbox list`")
    };
    let json = Arg::new("json")
        .long("json")
        .action(ArgAction::SetTrue)
        .help("Print JSON");
    let command = Command::new("outbox")
        .about("List, retry, or drop undelivered replies")
        .subcommand_required(true)
        .arg(gateway::name_arg().global(true))
        .subcommand(
            Command::new("list")
                .about("List undelivered replies")
                .arg(json),
        )
        .subcommand(
            Command::new("retry")
                .about("Retry delivery of a reply")
                .arg(id()),
        )
        .subcommand(Command::new("drop").about("Discard a reply").arg(id()));
    AppCommand::new(command, run)
}

async fn run(context: CommandContext) -> Result<ExitCode> {
    let settings = &context.settings;
    let directory =
        bub_gateway::gateway_directory(settings, gateway::gateway_name(&context.matches));
    let (action, matches) = context
        .matches
        .subcommand()
        .unwrap_or(("list", &context.matches));
    let request = match action {
        "list" => json!({"do": "outbox"}),
        _ => json!({"do": action, "id": matches.try_get_one::<String>("id").ok().flatten()}),
    };
    let answer = match status::send_request(&directory, &request).await? {
        Some(answer) => answer,
        // Listing must not create a journal.
        None if !directory.exists() => match matches.try_get_one::<String>("id").ok().flatten() {
            Some(id) => {
                return Err(Error::not_found(format!(
                    "unknown reply `{id}`; run `bub outbox list` to see undelivered replies"
                )));
            }
            None => json!({"replies": []}),
        },
        None => {
            status::edit_offline_outbox(
                Arc::new(RealFs),
                &directory,
                bub_gateway::journal_durability(settings),
                &request,
            )
            .await?
        }
    };
    output::print_untrusted(&outcome_text(action, matches, &answer))
}

fn outcome_text(action: &str, matches: &ArgMatches, answer: &Value) -> String {
    if action != "list" {
        let id = matches
            .try_get_one::<String>("id")
            .ok()
            .flatten()
            .map_or("", String::as_str);
        let done = if action == "retry" {
            "retrying"
        } else {
            "dropped"
        };
        return format!("{done} {id}\n");
    }
    if matches.try_get_one::<bool>("json").ok().flatten() == Some(&true) {
        return format!("{answer}\n");
    }
    let mut text = String::new();
    for reply in answer
        .get("replies")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let field =
            |key: &str| output::sanitize_line(reply.get(key).and_then(Value::as_str).unwrap_or(""));
        let number = |key: &str| reply.get(key).and_then(Value::as_u64).unwrap_or(0);
        let _ = writeln!(
            text,
            "{} {}:{} {}, {} s old, {} attempts, {}: {}",
            field("id"),
            field("channel"),
            field("chat"),
            field("state"),
            number("age_seconds"),
            number("attempts"),
            field("error"),
            field("text"),
        );
    }
    if text.is_empty() {
        "no undelivered replies\n".to_owned()
    } else {
        text
    }
}
