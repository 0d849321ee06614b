//! `bub run`: processes one message in one turn.
//!
//! It runs a gateway for one message. Lane and turn work as for every channel, the journal is in memory, and the
//! channel prints the answer while it streams. `args` has the options, `input` reads stdin and files, `output` prints.

mod args;
pub(super) mod input;
pub(super) mod mentions;
mod output;

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bub::{CommandContext, logging, signals};
use bub_gateway::{Gateway, GatewayOptions, JournalKind};
use bub_kernel::{
    ApprovalAnswer, ApprovalRequest, CancellationToken, Channel, ChannelRole, Error, ErrorKind,
    Framework, Inbound, InboundReceipt, MessageHandler, MessageKind, MessageOutcome, ModelStream,
    Outbound, ReplyOrigin, Result, Sender, SessionId, Turn, TurnReport, async_trait, command_line,
};
use bub_settings::Settings;
use bub_terminal::{
    channel::{AskApproval, CHANNEL_NAME, ChatEvent, ChatEventSender, CliChannel},
    sanitize::sanitize_line,
};
use serde_json::Value;
use tokio::sync::oneshot;

pub(super) use self::args::{ModelArgs, RUN_HEADER, RunArgs, setting_flags};
use self::{args::check_tools, output::TurnOutput};
use super::{
    approve::TerminalApprover,
    exit,
    interrupted::{CONTINUE_MESSAGE, offer_to_finish},
    local_model::offer_local_model,
};

/// Maximum characters of a denied call that are shown.
const MAX_DENIED_CALL_CHARS: usize = 200;

/// Exit code if the turn did not end within `--timeout`, as that of `timeout`.
const EXIT_TIMEOUT: u8 = 124;

pub(super) async fn run(context: CommandContext, args: RunArgs) -> Result<ExitCode> {
    check_tools(&context.framework, &context.settings)?;
    let text = args.read_message(&context).await?;
    if args.model.model.is_none() && command_line(&text).is_none() {
        offer_local_model(&context).await?;
    }
    let (framework, settings) = (context.framework, context.settings);
    let stop = signals::listen_for_stop();
    logging::suppress_turn_failures();
    let mut output = TurnOutput::new(&args, &text, &settings);
    let cancel = stop.token().child_token();
    let time_limit = args.timeout;
    let turns = async {
        let mut inbound = args.into_inbound(&framework, text).await?;
        inbound.cancel = cancel.clone();
        inbound.stream_output = !settings.get(&RUN_HEADER) && output.can_stream(&framework);
        output.begin(&inbound);
        if let Some(first) = message_to_finish(&framework, &inbound).await? {
            let report = run_turn(&framework, &settings, &mut output, first).await?;
            if report.error.is_some() {
                return Ok(report);
            }
        }
        run_turn(&framework, &settings, &mut output, inbound).await
    };
    let timer = async {
        if let Some(seconds) = time_limit {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            cancel.cancel();
        }
        std::future::pending().await
    };
    let report = tokio::select! {
        report = framework.run_scoped(turns) => report,
        never = timer => never,
    };
    let is_cancelled = cancel.is_cancelled();
    let report = match report {
        // The message was cancelled before its turn.
        Err(_) if is_cancelled => TurnReport::default(),
        report => report?,
    };
    let is_stopped = stop.token().is_cancelled();
    let timeout = time_limit.filter(|_| is_cancelled && !is_stopped);
    let failure = match timeout {
        Some(seconds) => Some(timeout_error(seconds)),
        None => exit::failure(&report).filter(|_| !is_cancelled),
    };
    output.finish(&report, failure.as_ref(), is_cancelled)?;
    if is_stopped {
        return Ok(stop.exit_code());
    }
    if let Some(error) = failure.as_ref().filter(|_| timeout.is_some()) {
        notice!("error: {}", error.message());
        return Ok(ExitCode::from(EXIT_TIMEOUT));
    }
    failure.map_or(Ok(ExitCode::SUCCESS), Err)
}

fn timeout_error(seconds: u64) -> Error {
    let text = format!("the turn did not end within {seconds} s; see `--timeout`");
    Error::new(ErrorKind::Cancelled, text)
}

/// Returns the message that finishes the last turn of the session, if that turn was interrupted and the user wants to
/// finish it before the message.
async fn message_to_finish(framework: &Framework, inbound: &Inbound) -> Result<Option<Inbound>> {
    let message = &inbound.message;
    let Some(session_id) = message.session_id() else {
        return Ok(None);
    };
    if message.is_command() || message.content() == CONTINUE_MESSAGE {
        return Ok(None);
    }
    let session_id = SessionId::from(&*session_id);
    if !offer_to_finish(framework, &session_id, false).await? {
        return Ok(None);
    }
    let message = message.clone().with("content", CONTINUE_MESSAGE);
    let mut first = Inbound::from(message)
        .with_sender(Sender::terminal())
        .with_cancel(inbound.cancel.clone());
    first.stream_output = inbound.stream_output;
    Ok(Some(first))
}

/// Runs the turn of one message in a separate gateway.
async fn run_turn(
    framework: &Framework,
    settings: &Settings,
    output: &mut TurnOutput,
    mut inbound: Inbound,
) -> Result<TurnReport> {
    let options = GatewayOptions {
        journal: JournalKind::Memory,
        catch_all: Some(CHANNEL_NAME.to_owned()),
        stream_output: inbound.stream_output,
        ..GatewayOptions::new(settings, "run")
    };
    let (event_sender, chat_events) = ChatEventSender::new();
    let log = event_sender.clone();
    let _log = output
        .is_read_by_user()
        .then(|| logging::LogRedirectGuard::new(log));
    let approver = Arc::<TerminalApprover>::default();
    let channel = RunChannel::new(framework, &inbound, settings, event_sender, &approver);
    let channel = Arc::new(channel);
    let mut handler = None;
    let gateway = Gateway::with_channels(framework, options, |message_handler| {
        handler = Some(MessageHandler::clone(message_handler));
        vec![Arc::clone(&channel) as Arc<dyn Channel>]
    })?;
    let handler = handler.ok_or_else(|| {
        Error::unknown("cannot send the message: the gateway has no message handler; report this")
    })?;
    let receipt = Arc::new(InboundReceipt::new(None));
    inbound.receipt = Some(Arc::clone(&receipt));
    let ended = CancellationToken::new();
    // Cancelled when the gateway has delivered everything: the output then has all events.
    let finished = CancellationToken::new();
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
    let serve = async {
        let _finish = finished.clone().drop_guard();
        let on_ready = || {
            let _ = ready.send(());
        };
        gateway.run(ended.clone(), on_ready).await
    };
    let print = output.print_events(chat_events, &approver, finished.clone());
    let (report, served, printed) = tokio::join!(submit, serve, print);
    served?;
    printed?;
    let mut report = report?;
    let errors = [&mut report.error, &mut report.model_error];
    for error in errors.into_iter().flatten() {
        // The output of a command is a part of the answer already.
        let text = channel.cli.shorten_error(error.message());
        if text != error.message() {
            *error = Error::new(error.kind(), text);
        }
    }
    Ok(report)
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

/// The channel of `bub run`. It is the channel of the chat, except that replies to other chats get a headline.
struct RunChannel {
    cli: Arc<CliChannel>,
    event_sender: ChatEventSender,
    /// Address of the chat of the message.
    chat: String,
    /// Whether replies to this chat have a headline, too.
    has_header: bool,
    /// Whether no model is configured, so that the reply is the guide to set one up.
    has_no_model: AtomicBool,
}

impl RunChannel {
    fn new(
        framework: &Framework,
        inbound: &Inbound,
        settings: &Settings,
        event_sender: ChatEventSender,
        approver: &Arc<TerminalApprover>,
    ) -> Self {
        let (channel, chat_id) = (inbound.message.channel(), inbound.message.chat_id());
        let (asker, approver) = (event_sender.clone(), Arc::clone(approver));
        let workspace = framework.workspace().to_owned();
        let redactor = settings.redactor().clone();
        let ask: AskApproval = Box::new(move |request| {
            let (asker, approver) = (asker.clone(), Arc::clone(&approver));
            let (workspace, redactor) = (workspace.clone(), redactor.clone());
            Box::pin(async move {
                // The output asks the question, because it has to remove its live area first.
                if let Err(error) = approver.open().await {
                    notice!("{}", redactor.redact(&denial_text(request, &error)));
                    return Err(error);
                }
                Ok(asker.ask_approval(request, &workspace).await)
            })
        });
        Self {
            cli: Arc::new(CliChannel::new(event_sender.clone(), Box::new(|_| {}), ask)),
            event_sender,
            chat: address(&channel.unwrap_or_default(), &chat_id.unwrap_or_default()),
            has_header: settings.get(&RUN_HEADER),
            has_no_model: AtomicBool::default(),
        }
    }
}

/// Returns the line about a call that is denied because the user cannot be asked.
fn denial_text(request: &ApprovalRequest, error: &Error) -> String {
    let (tool, reason) = (&request.tool, error.message());
    let arguments: Vec<String> = request.arguments.values().map(Value::to_string).collect();
    let call = sanitize_line(&format!("{tool} {}", arguments.join(" ")));
    let call: String = call.chars().take(MAX_DENIED_CALL_CHARS).collect();
    match &request.terms.content_cause {
        // A conversation with such text limits also what is allowed.
        Some(cause) => format!(
            "denied {call}: {cause}, so `--allow` does not apply; {reason}, or start a new session"
        ),
        None => format!("denied {call}: {reason}, or allow the tool with `--allow {tool}`"),
    }
}

fn address(channel: &str, chat_id: &str) -> String {
    format!("{channel}:{chat_id}")
}

#[async_trait]
impl Channel for RunChannel {
    fn name(&self) -> &str {
        CHANNEL_NAME
    }

    async fn start(&self, _: CancellationToken) -> Result<()> {
        Ok(())
    }

    async fn send(&self, reply: &Outbound) -> Result<()> {
        if reply.origin == ReplyOrigin::Notice {
            // `App` prints the error of a failed turn on stderr.
            if reply.kind() != MessageKind::Error {
                let notice = ChatEvent::Notice(reply.content().into_owned());
                self.event_sender.emit(notice).await;
            }
            return Ok(());
        }
        // Programs that read stdout must not take the guide for an answer.
        if self.has_no_model.load(Ordering::Relaxed) && reply.origin == ReplyOrigin::Turn {
            notice!("{}", reply.content());
            return Ok(());
        }
        let channel = reply.channel().unwrap_or("stdout".into());
        let chat = address(&channel, &reply.chat_id().unwrap_or("local".into()));
        if chat == self.chat && !self.has_header {
            return self.cli.send(reply).await;
        }
        let mut reply = reply.clone();
        let content = format!("[{chat}]\n{}", reply.content());
        reply.message.set("content", content);
        self.cli.send(&reply).await
    }

    fn stream_events(self: Arc<Self>, turn: Turn, stream: ModelStream) -> ModelStream {
        if turn.report().has_no_model {
            self.has_no_model.store(true, Ordering::Relaxed);
            return stream;
        }
        Arc::clone(&self.cli).stream_events(turn, stream)
    }

    async fn request_approval(&self, request: &ApprovalRequest) -> Result<Option<ApprovalAnswer>> {
        self.cli.request_approval(request).await
    }

    fn role(&self) -> ChannelRole {
        ChannelRole::Interface
    }
}
