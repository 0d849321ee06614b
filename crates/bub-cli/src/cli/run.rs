//! `bub run`: one message, one turn.

use std::{
    fmt::Write,
    io::Read,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

use bub::{AppCommand, CommandContext};
use bub_kernel::{
    ChannelMessage, Envelope, Error, ErrorKind, Framework, Result, Sender, State, TurnOptions,
    TurnResult,
};
use clap::{Arg, ArgMatches, Command};

use super::output;
use bub::{
    logging,
    signals::{self, Stop},
};

/// No message is this long.
const MOST_INPUT: u64 = 16 * 1024 * 1024;

/// What was wrong with an answer that came all the same: cut off, filtered, or not a model's.
#[derive(Clone, Default)]
pub(super) struct Flaw(Arc<Mutex<(Option<Error>, String)>>);

impl Flaw {
    pub(super) fn note(&self, error: &Error) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0 = Some(error.clone());
    }

    /// How far a turn came that failed.
    pub(super) fn note_partial(&self, output: &str) {
        output.clone_into(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).1);
    }

    fn take(&self) -> (Option<Error>, String) {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(super) fn command(flaw: &Flaw) -> AppCommand {
    let option = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("ID").help(help)
    };
    let command = Command::new("run")
        .about("Send one message, run one turn, print the replies")
        .arg(
            Arg::new("message")
                .value_name("MESSAGE")
                .required(true)
                .value_parser(not_blank)
                .help("The message; `-` reads it from standard input"),
        )
        .arg(
            option("channel", "The channel the message comes from")
                .value_name("NAME")
                .default_value("cli"),
        )
        .arg(option("chat-id", "The chat within the channel").default_value("local"))
        .arg(option("sender-id", "Who sends it").default_value("human"))
        .arg(
            option(
                "session-id",
                "The session it belongs to [default: CHANNEL:CHAT-ID]",
            )
            .value_parser(not_blank),
        );
    let flaw = flaw.clone();
    AppCommand::new(command, move |context| run(context, flaw.clone()))
}

fn not_blank(message: &str) -> Result<String, String> {
    if message.trim().is_empty() {
        Err("it is empty".to_owned())
    } else {
        Ok(message.to_owned())
    }
}

async fn run(context: CommandContext, flaw: Flaw) -> Result<ExitCode> {
    let CommandContext {
        framework,
        matches,
        settings,
        ..
    } = context;
    let inbound = inbound(&matches, message(&matches)?);
    let reply_to = inbound.clone();
    let stop = signals::listen();
    logging::failures_are_printed();
    match framework.run_scoped(turn(&framework, inbound, &stop)).await {
        Ok(result) => {
            let flaw = flaw.take().0.or_else(|| no_model(&result.state));
            let is_worth_printing =
                |reply: &&Envelope| flaw.is_none() || !reply.content().trim().is_empty();
            let replies = replies(result.outbounds.iter().filter(is_worth_printing));
            let printed = output::print_text(&settings.redactor().redact(&replies))?;
            flaw.map_or(Ok(printed), Err)
        }
        Err(error) if error.kind() == ErrorKind::Cancelled && stop.token().is_cancelled() => {
            Ok(stop.exit_code())
        }
        Err(error) => {
            // As far as it goes, as with an answer that a model broke off.
            let (_, partial) = flaw.take();
            if !partial.trim().is_empty() {
                let reply = reply_to.with("content", partial);
                let text = replies(std::iter::once(&reply));
                output::print_text(&settings.redactor().redact(&text))?;
            }
            Err(error)
        }
    }
}

/// The guide is of use to a person; a program must see that no model has answered.
fn no_model(state: &State) -> Option<Error> {
    let is_offline = state.get(bub_agent::NO_MODEL).is_some();
    is_offline.then(|| {
        Error::config(
            "no model is configured; `bub onboard` sets one up, `bub models` shows what can be used",
        )
    })
}

/// Runs the turn, as soon as no other one of its session runs.
async fn turn(framework: &Framework, inbound: Envelope, stop: &Stop) -> Result<TurnResult> {
    let options = TurnOptions {
        cancel: Some(stop.token()),
        ..TurnOptions::default()
    };
    let session_id = framework.resolve_session(&inbound).await?;
    tokio::select! {
        waited = bub_agent::wait_for_session(framework, &session_id) => waited?,
        () = options.cancelled() => {}
    }
    framework.process_inbound(inbound, options).await
}

/// The message that was typed, or else what comes in.
fn message(matches: &ArgMatches) -> Result<String> {
    let typed = matches
        .get_one::<String>("message")
        .cloned()
        .unwrap_or_default();
    if typed != "-" {
        return Ok(typed);
    }
    let mut bytes = Vec::new();
    std::io::stdin()
        .lock()
        .take(MOST_INPUT + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_INPUT {
        return Err(Error::invalid_input(format!(
            "the message is longer than {MOST_INPUT} bytes"
        )));
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| Error::invalid_input("the message is not valid UTF-8"))?;
    not_blank(&text).map_err(|_| Error::invalid_input("standard input has no message"))
}

fn inbound(matches: &ArgMatches, content: String) -> Envelope {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let (channel, chat_id) = (text("channel"), text("chat-id"));
    let session = matches.get_one::<String>("session-id").cloned();
    let session = session.unwrap_or_else(|| format!("{channel}:{chat_id}"));
    let message = ChannelMessage::new(session, channel, content)
        .chat_id(chat_id)
        .context("sender_id", text("sender-id"));
    // Whatever the message says about itself: it was typed here.
    Envelope::from(message).with_sender(Sender::terminal())
}

fn replies<'a>(outbounds: impl Iterator<Item = &'a Envelope>) -> String {
    let mut text = String::new();
    for outbound in outbounds {
        let channel = outbound.channel().unwrap_or("stdout".into());
        let chat_id = outbound.chat_id().unwrap_or("local".into());
        let _ = writeln!(text, "[{channel}:{chat_id}]\n{}", outbound.content());
    }
    text
}
