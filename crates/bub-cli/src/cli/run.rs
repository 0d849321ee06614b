//! `bub run`: processes one message in one turn.
//!
//! It runs a gateway for one message. Lane and turn work as for every channel, the journal is in memory, and the
//! channel prints the replies.

use std::{io::Read, process::ExitCode, sync::Arc};

use bub::{
    CommandContext, logging,
    signals::{self, StopSignal},
};
use bub_gateway::{Gateway, GatewayOptions, JournalKind};
use bub_kernel::{
    ApprovalAnswer, ApprovalRequest, CancellationToken, Channel, ChannelMessage, ChannelRole,
    Error, Framework, Inbound, InboundReceipt, MessageHandler, MessageOutcome, Outbound,
    ReplyOrigin, Result, Sender, TurnReport, async_trait,
};
use bub_settings::Settings;
use bub_terminal::channel::CHANNEL_NAME;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{
    approve::TerminalApprover, exit, local_model::offer_local_model, output, parse_non_blank,
};

/// Maximum size of a message from stdin, in bytes.
const MAX_INPUT_BYTES: u64 = 16 * 1024 * 1024;

#[derive(clap::Args)]
pub(super) struct RunArgs {
    /// Message to send; `-` reads stdin
    #[arg(value_parser = parse_non_blank)]
    message: String,
    /// Channel of the message
    #[arg(long, value_name = "NAME", default_value = "cli")]
    channel: String,
    /// Chat within the channel
    #[arg(long, value_name = "ID", default_value = "local")]
    chat_id: String,
    /// Sender of the message
    #[arg(long, value_name = "ID", default_value = "human")]
    sender_id: String,
    /// Session to use [default: CHANNEL:CHAT-ID]
    #[arg(long, value_name = "ID", value_parser = parse_non_blank)]
    session_id: Option<String>,
    /// Keep control sequences and invisible characters, if stdout is not a terminal
    #[arg(long)]
    raw: bool,
}

pub(super) async fn run(context: CommandContext, args: RunArgs) -> Result<ExitCode> {
    let is_raw = args.raw;
    let inbound = args.into_inbound()?;
    if !inbound.message.is_command() {
        offer_local_model(&context).await?;
    }
    let (framework, settings) = (context.framework, context.settings);
    let stop = signals::listen_for_stop();
    logging::suppress_turn_failures();
    let channel = Arc::new(PrintChannel::new(&inbound));
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
        text.extend([&channel.chat, "\n", &report.output, "\n"]);
    }
    let text = settings.redactor().redact(&text);
    let printed = if is_raw {
        output::print_untrusted(&text)?
    } else {
        output::print(&output::sanitize(&text))?
    };
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
        MessageOutcome::Dropped { reason } => {
            let text = format!("the message was not answered: {reason}");
            Err(Error::unknown(text))
        }
        MessageOutcome::Unfinished { error } => Err(error),
        _ => Err(Error::unknown(
            "the message was not answered: it was added to another turn; see `bub tape show`",
        )),
    }
}

/// The channel of `bub run`: collects replies for printing and asks for approvals at the terminal.
struct PrintChannel {
    /// Headline of replies to the chat of the message.
    chat: String,
    replies: Mutex<Vec<PrintedReply>>,
    terminal: TerminalApprover,
}

/// A reply to print.
struct PrintedReply {
    text: String,
    is_blank: bool,
    origin: ReplyOrigin,
}

impl PrintChannel {
    fn new(inbound: &Inbound) -> Self {
        let (channel, chat_id) = (inbound.message.channel(), inbound.message.chat_id());
        Self {
            chat: headline(&channel.unwrap_or_default(), &chat_id.unwrap_or_default()),
            replies: Mutex::default(),
            terminal: TerminalApprover::default(),
        }
    }

    /// Returns the replies as text. If the turn failed, omits blank replies.
    fn replies(&self, has_failed: bool) -> String {
        let replies = self.replies.lock();
        let shown = replies
            .iter()
            .filter(|reply| !has_failed || !reply.is_blank);
        shown.map(|reply| reply.text.as_str()).collect()
    }

    /// Returns whether the answer of the turn was delivered.
    fn has_answer(&self) -> bool {
        let is_answer = |reply: &PrintedReply| reply.origin == ReplyOrigin::Turn;
        self.replies.lock().iter().any(is_answer)
    }
}

fn headline(channel: &str, chat_id: &str) -> String {
    format!("[{channel}:{chat_id}]")
}

#[async_trait]
impl Channel for PrintChannel {
    fn name(&self) -> &str {
        CHANNEL_NAME
    }

    async fn start(&self, _: CancellationToken) -> Result<()> {
        Ok(())
    }

    async fn send(&self, reply: &Outbound) -> Result<()> {
        // Skip notices about the failure of the turn, because `App` prints its error on stderr.
        if reply.origin != ReplyOrigin::Notice {
            let channel = reply.channel().unwrap_or("stdout".into());
            let chat = headline(&channel, &reply.chat_id().unwrap_or("local".into()));
            let content = reply.content();
            self.replies.lock().push(PrintedReply {
                text: format!("{chat}\n{content}\n"),
                is_blank: content.trim().is_empty(),
                origin: reply.origin,
            });
        }
        Ok(())
    }

    async fn request_approval(&self, request: &ApprovalRequest) -> Result<Option<ApprovalAnswer>> {
        self.terminal.ask(request).await.map(Some)
    }

    fn role(&self) -> ChannelRole {
        ChannelRole::Interface
    }
}

impl RunArgs {
    fn into_inbound(self) -> Result<Inbound> {
        let content = match self.message.as_str() {
            "-" => read_message()?,
            _ => self.message,
        };
        let session = self.session_id;
        let session = session.unwrap_or_else(|| format!("{}:{}", self.channel, self.chat_id));
        let message = ChannelMessage::new(session, self.channel, content)
            .chat_id(self.chat_id)
            .context("sender_id", self.sender_id);
        // The command line can name any channel and sender id, so the authenticated sender is always the user of this
        // terminal.
        Ok(Inbound::from(message).with_sender(Sender::terminal()))
    }
}

/// Reads the message from stdin.
fn read_message() -> Result<String> {
    let mut bytes = Vec::new();
    let mut stdin = std::io::stdin().lock().take(MAX_INPUT_BYTES + 1);
    if stdin.read_to_end(&mut bytes)? as u64 > MAX_INPUT_BYTES {
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
