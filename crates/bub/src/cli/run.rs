//! `bub run`: one message, one turn.

use std::{fmt::Write, process::ExitCode};

use bub_kernel::{ChannelMessage, CliCommand, CliContext, Envelope, ErrorKind, Result, TurnOptions};
use clap::{Arg, ArgMatches, Command};

use super::output;
use crate::signals;

pub(super) fn command() -> CliCommand {
    let option =
        |name: &'static str, help: &'static str| Arg::new(name).long(name).value_name("ID").help(help);
    let command = Command::new("run")
        .about("Send one message, run one turn, print the replies")
        .arg(Arg::new("message").value_name("MESSAGE").required(true).help("The message"))
        .arg(option("channel", "The channel the message comes from").value_name("NAME").default_value("cli"))
        .arg(option("chat-id", "The chat within the channel").default_value("local"))
        .arg(option("sender-id", "Who sends it").default_value("human"))
        .arg(option("session-id", "The session it belongs to [default: CHANNEL:CHAT-ID]"));
    CliCommand::new(command, run)
}

async fn run(context: CliContext) -> Result<ExitCode> {
    let CliContext { framework, matches } = context;
    let stop = signals::listen();
    let options = TurnOptions { cancel: Some(stop.token()), ..TurnOptions::default() };
    let turn = framework.run_scoped(framework.process_inbound(inbound(&matches), options)).await;
    match turn {
        Ok(result) => output::print(&replies(&result.outbounds)),
        Err(error) if error.kind() == ErrorKind::Cancelled => Ok(stop.exit_code()),
        Err(error) => Err(error),
    }
}

fn inbound(matches: &ArgMatches) -> Envelope {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let (channel, chat_id) = (text("channel"), text("chat-id"));
    let session = matches.get_one::<String>("session-id").cloned();
    let session = session.unwrap_or_else(|| format!("{channel}:{chat_id}"));
    ChannelMessage::new(session, channel, text("message"))
        .chat_id(chat_id)
        .context("sender_id", text("sender-id"))
        .into()
}

fn replies(outbounds: &[Envelope]) -> String {
    let mut text = String::new();
    for outbound in outbounds {
        let channel = outbound.channel().unwrap_or("stdout".into());
        let chat_id = outbound.chat_id().unwrap_or("local".into());
        let _ = writeln!(text, "[{channel}:{chat_id}]\n{}", outbound.content());
    }
    text
}
