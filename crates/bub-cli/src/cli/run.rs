//! `bub run`: processes one message in one turn.
//!
//! It runs a gateway for one message. Lane and turn work as for every channel, the journal is in memory, and the
//! channel prints the replies.

use std::{
    io::Read,
    process::ExitCode,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bub::{
    AppCommand, CommandContext, logging,
    signals::{self, StopSignal},
};
use bub_gateway::{Gateway, GatewayOptions, JournalKind};
use bub_kernel::{
    ApprovalAnswer, ApprovalRequest, BoxFuture, CancellationToken, Channel, ChannelMessage,
    ChannelRole, Error, Framework, Inbound, InboundReceipt, MessageHandler, MessageOutcome,
    Outbound, ReplyOrigin, Result, Sender, TurnReport,
};
use bub_settings::Settings;
use bub_terminal::channel::CHANNEL_NAME;
use clap::{Arg, ArgMatches, Command};
use tokio::sync::oneshot;

use super::{approve::TerminalApprover, exit, output};

/// Maximum size of a message from stdin, in bytes.
const MAX_INPUT_BYTES: u64 = 16 * 1024 * 1024;

pub(super) fn command() -> AppCommand {
    let option = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("ID").help(help)
    };
    let command = Command::new("run")
        .about("Send one message and print the replies")
        .arg(
            Arg::new("message")
                .value_name("MESSAGE")
                .required(true)
                .value_parser(parse_non_blank)
                .help("Message to send; `-` reads stdin"),
        )
        .arg(
            option("channel", "Channel of the message")
                .value_name("NAME")
                .default_value("cli"),
        )
        .arg(option("chat-id", "Chat within the channel").default_value("local"))
        .arg(option("sender-id", "Sender of the message").default_value("human"))
        .arg(
            option("session-id", "Session to use [default: CHANNEL:CHAT-ID]")
                .value_parser(parse_non_blank),
        );
    AppCommand::new(command, run)
}

fn parse_non_blank(message: &str) -> Result<String, String> {
    if message.trim().is_empty() {
        Err("the value must not be empty".to_owned())
    } else {
        Ok(message.to_owned())
    }
}

async fn run(context: CommandContext) -> Result<ExitCode> {
    let CommandContext {
        framework,
        matches,
        settings,
        ..
    } = context;
    let inbound = inbound(&matches, message(&matches)?);
    let stop = signals::listen_for_stop();
    logging::suppress_turn_failures();
    let channel = Arc::<PrintChannel>::default();
    let turn = run_turn(&framework, &settings, &channel, inbound, &stop);
    let report = framework.run_scoped(turn).await;
    let is_stopped = stop.token().is_cancelled();
    let report = match report {
        // The message was cancelled before its turn.
        Err(_) if is_stopped => TurnReport::default(),
        report => report?,
    };
    let failure = exit::failure(&report);
    let mut text = channel.replies(failure.is_some() || is_stopped);
    if report.error.is_some() && !report.output.trim().is_empty() && !channel.has_answer() {
        // The answer, or a part of it, exists but was not delivered.
        text.push_str(&block(&channel.chat(), &report.output));
    }
    let printed = output::print_untrusted(&settings.redactor().redact(&text))?;
    if is_stopped {
        return Ok(stop.exit_code());
    }
    failure.map_or(Ok(printed), Err)
}

/// Runs the turn of one message in a separate gateway.
async fn run_turn(
    framework: &Framework,
    settings: &Settings,
    channel: &Arc<PrintChannel>,
    mut inbound: Inbound,
    stop: &StopSignal,
) -> Result<TurnReport> {
    let options = GatewayOptions {
        journal: JournalKind::Memory,
        catch_all: Some(CHANNEL_NAME.to_owned()),
        stream_output: false,
        ..GatewayOptions::new(settings, "run")
    };
    let mut handler = None;
    let gateway = Gateway::with_channels(framework, options, |message_handler| {
        handler = Some(MessageHandler::clone(message_handler));
        vec![Arc::clone(channel) as Arc<dyn Channel>]
    })?;
    let handler = handler.ok_or_else(|| {
        Error::unknown("cannot send the message: the gateway has no message handler; report this")
    })?;
    channel.set_chat(&inbound);
    let receipt = Arc::new(InboundReceipt::new(None));
    inbound.receipt = Some(Arc::clone(&receipt));
    inbound.cancel = stop.token();
    let ended = CancellationToken::new();
    let (ready, is_ready) = oneshot::channel();
    let submit = async {
        let _end = ended.clone().drop_guard();
        // An error means that the gateway did not start; `gateway.run` returns the reason.
        if is_ready.await.is_err() {
            return Ok(TurnReport::default());
        }
        handler(inbound).await?;
        report(receipt.outcome().await)
    };
    let serve = gateway.run(ended.clone(), || {
        let _ = ready.send(());
    });
    let (report, served) = tokio::join!(submit, serve);
    served?;
    report
}

fn report(outcome: MessageOutcome) -> Result<TurnReport> {
    match outcome {
        MessageOutcome::Done {
            report: Some(report),
            ..
        } => Ok(report),
        MessageOutcome::Dropped { reason } => Err(Error::unknown(format!(
            "the message was not answered: {reason}"
        ))),
        MessageOutcome::Unfinished { error } => Err(error),
        _ => Err(Error::unknown(
            "the message was not answered: it was added to another turn; see `bub tape show`",
        )),
    }
}

/// The channel of `bub run`: collects replies for printing and asks for approvals at the terminal.
#[derive(Default)]
struct PrintChannel {
    chat: Mutex<ChatAddress>,
    replies: Mutex<Vec<PrintedReply>>,
    terminal: TerminalApprover,
}

/// A reply to print.
struct PrintedReply {
    chat: ChatAddress,
    content: String,
    origin: ReplyOrigin,
}

/// A chat, as shown in the headline of a reply.
#[derive(Clone, Default)]
struct ChatAddress {
    channel: String,
    chat_id: String,
}

impl PrintChannel {
    fn set_chat(&self, inbound: &Inbound) {
        let (channel, chat_id) = (inbound.message.channel(), inbound.message.chat_id());
        *lock(&self.chat) = ChatAddress {
            channel: channel.unwrap_or_default().into_owned(),
            chat_id: chat_id.unwrap_or_default().into_owned(),
        };
    }

    fn chat(&self) -> ChatAddress {
        lock(&self.chat).clone()
    }

    /// Returns the replies as text, without blank ones after a failure.
    fn replies(&self, has_failed: bool) -> String {
        let replies = lock(&self.replies);
        let shown = replies
            .iter()
            .filter(|reply| !has_failed || !reply.content.trim().is_empty());
        shown
            .map(|reply| block(&reply.chat, &reply.content))
            .collect()
    }

    /// Returns whether the answer of the turn was delivered.
    fn has_answer(&self) -> bool {
        let is_answer = |reply: &PrintedReply| reply.origin == ReplyOrigin::Turn;
        lock(&self.replies).iter().any(is_answer)
    }
}

fn block(chat: &ChatAddress, content: &str) -> String {
    format!("[{}:{}]\n{content}\n", chat.channel, chat.chat_id)
}

impl Channel for PrintChannel {
    fn name(&self) -> &str {
        CHANNEL_NAME
    }

    fn start(&self, _: CancellationToken) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn stop(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn send<'a>(&'a self, reply: &'a Outbound) -> BoxFuture<'a, Result<()>> {
        // `app.rs` prints the failure of the turn once, on stderr.
        if reply.origin != ReplyOrigin::Notice {
            let chat = ChatAddress {
                channel: reply.channel().unwrap_or("stdout".into()).into_owned(),
                chat_id: reply.chat_id().unwrap_or("local".into()).into_owned(),
            };
            lock(&self.replies).push(PrintedReply {
                chat,
                content: reply.content().into_owned(),
                origin: reply.origin,
            });
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn request_approval<'a>(
        &'a self,
        request: &'a ApprovalRequest,
    ) -> BoxFuture<'a, Result<Option<ApprovalAnswer>>> {
        Box::pin(async { self.terminal.ask(request).await.map(Some) })
    }

    fn role(&self) -> ChannelRole {
        ChannelRole::Interface
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the message from the command line, or from stdin if the argument is `-`.
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
        .take(MAX_INPUT_BYTES + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_INPUT_BYTES {
        return Err(Error::invalid_input(format!(
            "the message is too long: the maximum is {MAX_INPUT_BYTES} bytes; write it to a file and send its path"
        )));
    }
    let text = String::from_utf8(bytes).map_err(|_| {
        Error::invalid_input(
            "cannot read the message: stdin is not valid UTF-8; pass text in UTF-8",
        )
    })?;
    parse_non_blank(&text).map_err(|_| {
        Error::invalid_input("no message: stdin is empty; pipe the message to `bub run -`")
    })
}

fn inbound(matches: &ArgMatches, content: String) -> Inbound {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let (channel, chat_id) = (text("channel"), text("chat-id"));
    let session = matches.get_one::<String>("session-id").cloned();
    let session = session.unwrap_or_else(|| format!("{channel}:{chat_id}"));
    let message = ChannelMessage::new(session, channel, content)
        .chat_id(chat_id)
        .context("sender_id", text("sender-id"));
    // The channel and sender id of the message are free text; it was typed at this terminal.
    Inbound::from(message).with_sender(Sender::terminal())
}
