//! `bub chat`: a chat in the terminal or through a pipe.
//!
//! It runs a gateway for one chat, with a terminal channel (`bub-terminal`) and a separate journal. Lanes, queues and
//! steering work as for every other channel. `controller` connects the terminal and the gateway; `session` selects the
//! session.

mod clipboard;
mod controller;
pub(super) mod session;

use std::{
    io::IsTerminal as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use bub::CommandContext;
use bub_agent::{Skills, tools::CHAT_COMMANDS};
use bub_gateway::{Gateway, GatewayOptions, gateway_directory};
use bub_kernel::{CancellationToken, Error, ErrorKind, Framework, Result, command_prefix};
use bub_settings::{Environment, HOME, Settings};
use bub_tape::fs::{Fs as _, OpenMode, RealFs};
use bub_terminal::{
    channel::ChatEventSender,
    chat::{self, ChatExit, ChatOptions, LastExchange},
    editor::{CompletionItem, CompletionItems},
    history::History,
    plain_chat::{self, PlainChatOptions, run_pipe_chat},
};
use tokio::sync::oneshot;

pub(crate) use self::controller::ChatHooks;
use self::{
    controller::ChatController,
    session::{ChatSession, offer_former_session},
};
use super::{
    interrupted::{CONTINUE_MESSAGE, offer_to_finish},
    local_model::offer_local_model,
    onboard::offer_onboarding,
    parse_non_blank, prompt,
    run::{ModelArgs, input::attach_file},
    terminal_mode::{TerminalMode, color_mode, rewraps_lines},
};
use bub::{logging, signals};

/// How long a stopped chat waits for the running turn. An unfinished turn resumes when the user starts the chat again.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// How long a stopped program waits until the line that is being submitted is recorded as cancelled.
const SUBMISSION_CANCEL_TIMEOUT: Duration = Duration::from_secs(3);

/// Chat with the agent in the terminal or through a pipe
///
/// If stdin is not a terminal, bub sends each line as a message and prints the answers.
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 success, 1 a turn in a pipe failed, 2 invalid arguments or configuration, or no \
                  model, 129 terminal closed, 130 interrupted, 143 terminated"
)]
pub(super) struct ChatArgs {
    /// Message to send first
    #[arg(value_name = "MESSAGE")]
    message: Option<String>,
    #[command(flatten)]
    model: ModelArgs,
    /// Chat within the `cli` channel
    #[arg(long, value_name = "ID", default_value = session::DEFAULT_CHAT_ID)]
    chat_id: String,
    /// Session to use [default: `cli_session`; with `--chat-id`, cli:CHAT-ID]
    #[arg(long, value_name = "ID", alias = "session-id", value_parser = parse_non_blank)]
    session: Option<String>,
    /// Continue the most recent session of this workspace
    #[arg(long = "continue", short = 'c', conflicts_with = "session")]
    continue_latest: bool,
    /// Image to attach to the first message, repeatable
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// Disable colors and cursor movement, for screen readers
    #[arg(long)]
    plain: bool,
    /// In a pipe, keep control sequences and invisible characters of answers
    #[arg(long)]
    raw: bool,
}

impl ChatArgs {
    /// Offers to set up a model, unless the user names one.
    async fn offer_setup(&self, context: &CommandContext) -> Result<()> {
        if self.model.model.is_none() {
            offer_local_model(context).await?;
            offer_onboarding(context).await?;
        }
        Ok(())
    }

    fn first_line(&self) -> Option<String> {
        let line = self.message.as_deref().map(str::trim);
        line.filter(|line| !line.is_empty()).map(str::to_owned)
    }
}

/// Input and output mode of the chat.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChatMode {
    /// Full terminal with colors and cursor movement.
    Screen,
    /// Plain lines at a terminal.
    Lines,
    /// Stdin is not a terminal: a program sends the lines.
    Pipe,
}

impl ChatMode {
    fn new(is_plain: bool, environment: &Environment) -> Self {
        if !std::io::stdin().is_terminal() {
            return Self::Pipe;
        }
        match TerminalMode::of_stdout(environment) {
            TerminalMode::Screen if !is_plain => Self::Screen,
            _ => Self::Lines,
        }
    }
}

pub(super) async fn run(
    context: CommandContext,
    args: ChatArgs,
    chat: Arc<ChatHooks>,
) -> Result<ExitCode> {
    args.offer_setup(&context).await?;
    let (framework, settings) = (context.framework, context.settings);
    let mode = ChatMode::new(args.plain, settings.environment());
    let first_line = args.first_line();
    let images = args.image.iter();
    let images = images.map(|path| attach_file(&framework, path, true));
    let images = images.collect::<Result<Vec<_>>>()?;
    let is_raw = args.raw && !std::io::stdout().is_terminal();
    logging::suppress_turn_failures();
    let outcome = framework.run_scoped(async {
        let (sender, chat_events) = ChatEventSender::new();
        let model = args.model.clone();
        let mut session = ChatSession::choose(&framework, args).await?;
        let can_ask = mode != ChatMode::Pipe;
        let first_line = offer_former_session(&framework, &mut session, can_ask, first_line);
        let first_line = first_line.await?;
        if can_ask {
            context.plugin_prompt.attach_chat(&sender);
        }
        let chat_controller = ChatController::new(&framework, &settings, sender, can_ask, session);
        chat_controller.attach_to_next(images);
        chat_controller.set_model(model);
        chat.attach(&chat_controller);
        let Some(gateway) = open(&chat_controller, mode).await? else {
            return Ok((ChatExit::Quit, chat_controller, None));
        };
        let remote = gateway.handle();
        // Lines of an earlier chat resume automatically, with the turn that they belong to.
        let session_id = chat_controller.session().into();
        let resumes = remote.unfinished_count() > 0;
        let should_finish_turn = offer_to_finish(&framework, &session_id, resumes).await?;
        // Do not listen for signals earlier: a signal must end these questions immediately.
        let stop = if mode == ChatMode::Lines {
            signals::listen_without_interrupt()
        } else {
            signals::listen_for_stop()
        };
        // Count the recovered replies now, because turns of this chat add further replies.
        let recovered_replies = remote.queued_reply_count();
        // A turn of an earlier chat that resumes is shown when it runs.
        let last_exchange = chat_controller.last_exchange().await;
        let _ = chat_controller.gateway.set(remote.clone());
        // Cancelled when the user leaves or the program is stopped: the gateway should_finish_turn what it can.
        let ended = CancellationToken::new();
        // Cancelled when the gateway has finished: the chat then has all events.
        let finished = CancellationToken::new();
        let (ready, is_ready) = oneshot::channel();
        let conversation = async {
            let _end = ended.clone().drop_guard();
            // The gateway must resume unfinished messages before it accepts new ones.
            if is_ready.await.is_err() {
                return Ok(ChatExit::Quit);
            }
            if should_finish_turn {
                chat_controller.submit_recovered_line(CONTINUE_MESSAGE);
            }
            let plain = PlainChatOptions {
                first_line,
                words: completion_items(&framework, &settings),
                host: Arc::clone(&chat_controller) as _,
                chat_events,
                recovered_replies,
                input_end: stop.token(),
                stop: finished.clone(),
                redactor: settings.redactor().clone(),
            };
            match mode {
                ChatMode::Pipe => run_pipe_chat(plain, is_raw).await,
                ChatMode::Lines => run_line_chat(&chat_controller, plain, last_exchange).await,
                ChatMode::Screen => run_screen_chat(&chat_controller, plain, last_exchange).await,
            }
        };
        let serving = async {
            let _finish = finished.clone().drop_guard();
            let on_ready = || {
                let _ = ready.send(());
            };
            gateway.run(ended.clone(), on_ready).await
        };
        let stopping = async {
            tokio::select! {
                () = ended.cancelled() => return,
                () = stop.token().cancelled_owned() => {}
            }
            let cancelling = chat_controller.cancel_submission();
            let _ = tokio::time::timeout(SUBMISSION_CANCEL_TIMEOUT, cancelling).await;
            ended.cancel();
        };
        let (left, served, ()) = tokio::join!(conversation, serving, stopping);
        if remote.is_settled() {
            remove_journal(&gateway_directory(&settings, &chat_controller.journal()));
        }
        served?;
        if remote.unfinished_count() > 0 {
            notice!("stopped; unfinished messages resume at the next `bub chat`");
        }
        Ok((left?, chat_controller, Some(stop)))
    });
    let (left, chat_controller, stop) = outcome.await?;
    let is_pipe = mode == ChatMode::Pipe;
    match stop.filter(|stop| stop.token().is_cancelled()) {
        Some(stop) if is_pipe || left == ChatExit::Stopped => Ok(stop.exit_code()),
        _ if is_pipe => chat_controller.exit_code(),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Runs the chat with plain lines at a terminal.
async fn run_line_chat(
    chat: &ChatController,
    plain: PlainChatOptions,
    last_exchange: Option<LastExchange>,
) -> Result<ChatExit> {
    let _log = logging::LogRedirectGuard::new(chat.event_sender.clone());
    let workspace = chat.framework.workspace_text();
    let (history, _) = History::open(&chat.settings.get(&HOME), workspace);
    let prompt = format!("{} >", workspace.rsplit('/').next().unwrap_or_default());
    let welcome = welcome(chat, "Ctrl-C cancels").await;
    plain_chat::run_plain_chat(plain, history, welcome, last_exchange, &prompt).await
}

/// Runs the chat with colors and cursor movement.
async fn run_screen_chat(
    chat: &Arc<ChatController>,
    plain: PlainChatOptions,
    last_exchange: Option<LastExchange>,
) -> Result<ChatExit> {
    let controller = Arc::clone(chat);
    drop(tokio::spawn(async move { controller.send_status().await }));
    let _log = logging::LogRedirectGuard::new(chat.event_sender.clone());
    let environment = chat.settings.environment();
    let chat_options = ChatOptions {
        first_line: plain.first_line,
        host: plain.host,
        chat_events: plain.chat_events,
        stop: plain.stop,
        home: chat.settings.get(&HOME),
        workspace: chat.framework.workspace_text().to_owned(),
        welcome: welcome(chat, KEY_HINTS).await,
        last_exchange,
        words: plain.words,
        status: chat.status().await,
        redactor: plain.redactor,
        color_mode: color_mode(environment),
        reflows: rewraps_lines(environment),
    };
    chat::run_chat(chat_options).await
}

/// Opens the gateway with the journal of the chat.
///
/// If another process has the journal open, asks whether to start a new session. Returns `None` if the user declines.
async fn open(chat: &ChatController, mode: ChatMode) -> Result<Option<Gateway>> {
    let mut is_retry = false;
    loop {
        let mut options = GatewayOptions::new(&chat.settings, &chat.journal());
        (options.stream_output, options.drain) = (true, DRAIN_TIMEOUT);
        let channels = |handler: &_| vec![chat.channel(handler)];
        match Gateway::with_channels(&chat.framework, options, channels) {
            Err(error) if error.kind() == ErrorKind::InUse && !is_retry => {
                let session = chat.session();
                if mode == ChatMode::Pipe {
                    // A program expects exactly the session that it names.
                    return Err(Error::config(format!(
                        "session `{session}` is open in another chat; leave that chat, or pass another `--session`"
                    )));
                }
                let question =
                    format!("Session {session} is open in another chat. Start a new one?");
                if !prompt::confirm(&question, true).await? {
                    return Ok(None);
                }
                chat.start_new_chat();
                is_retry = true;
                let session = chat.session();
                notice!("the session is open in another chat; started a new session: {session}");
            }
            outcome => return outcome.map(Some),
        }
    }
}

/// Removes the directory of an empty journal, unless another process has opened the journal.
fn remove_journal(directory: &Path) {
    let lock = directory.join("lock");
    let Ok(guard) = RealFs.open(&lock, OpenMode::Write) else {
        return;
    };
    if guard.try_lock().unwrap_or(false) {
        let _ = std::fs::remove_dir_all(directory);
    }
}

const KEY_HINTS: &str = "Tab completes · Alt-Enter new line · Esc cancels · Ctrl-X shell mode";

/// Returns the lines at the start of a chat: version, workspace, model, session, and key hints.
async fn welcome(chat: &ChatController, keys: &str) -> Vec<String> {
    let (status, prefix) = (chat.status().await, command_prefix());
    let model = if status.model.is_empty() {
        "selected at the first message"
    } else {
        &status.model
    };
    vec![
        format!("Bub {}", env!("CARGO_PKG_VERSION")),
        format!("workspace: {}", chat.framework.workspace_text()),
        format!("model: {model}"),
        match status.entries {
            0 => format!("session: {}", status.session),
            _ => format!(
                "session: {} (continued; {prefix}new starts a fresh one)",
                status.session
            ),
        },
        format!("{prefix}help lists commands · {keys} · Ctrl-D leaves"),
    ]
}

/// Returns the commands and skills that Tab completes.
pub(super) fn completion_items(framework: &Framework, settings: &Arc<Settings>) -> CompletionItems {
    let item = |text: &str, about: &str| CompletionItem {
        text: text.to_owned(),
        about: about.to_owned(),
        arguments: String::new(),
    };
    let tools = framework.tools().iter().map(|tool| {
        let spec = tool.spec();
        let parameters = spec.parameters().into_iter();
        let arguments = parameters.map(|(name, is_required)| {
            if is_required {
                name.to_owned()
            } else {
                format!("[{name}]")
            }
        });
        CompletionItem {
            arguments: arguments.collect::<Vec<_>>().join(" "),
            ..item(
                &spec.name,
                spec.description.lines().next().unwrap_or_default(),
            )
        }
    });
    let mut commands: Vec<_> = tools.collect();
    commands.extend(CHAT_COMMANDS.map(|(name, about)| item(name, about)));
    commands.push(item("diff", "Show what changed in the Git repository"));
    commands.sort_by(|a, b| a.text.cmp(&b.text));
    let skills = Skills::new(settings).list(Some(framework.workspace()));
    let skills = skills
        .iter()
        .map(|skill| item(skill.name(), skill.description()));
    CompletionItems {
        commands,
        skills: skills.collect(),
        sessions: Vec::new(),
        workspace: framework.workspace().to_owned(),
    }
}
