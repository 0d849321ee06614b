//! `bub chat`: a chat in the terminal or through a pipe.
//!
//! It runs a gateway for one chat: a terminal channel (`bub-terminal`), a separate journal, and the lanes, steering and
//! queueing of every channel. `controller` connects the terminal and the gateway; `session` selects the session.

mod controller;
mod session;

use std::{
    io::{IsTerminal as _, Write as _},
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use bub::{AppCommand, CommandContext};
use bub_agent::Skills;
use bub_gateway::{Gateway, GatewayOptions};
use bub_kernel::{CancellationToken, Error, ErrorKind, Framework, Result};
use bub_settings::{Environment, HOME, Settings};
use bub_tape::fs::{Fs as _, OpenMode, RealFs};
use bub_terminal::{
    ColorMode,
    channel::ChatEventSender,
    chat::{self, ChatExit, ChatOptions},
    editor::{CompletionItem, CompletionItems},
    history::History,
    plain_chat::{self, PlainChatOptions, run_pipe_chat},
};
use clap::{Arg, ArgAction, ArgMatches, Command};
use tokio::sync::oneshot;

pub(crate) use self::controller::ChatHooks;
use self::{controller::ChatController, session::ChatSession};
use bub::{logging, signals};

/// How long a stopped chat waits for the running turn. An unfinished turn resumes at the next chat.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// How long a stopped program waits until the line that is being submitted is recorded as cancelled.
const SUBMISSION_CANCEL_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) fn command(chat: &Arc<ChatHooks>) -> AppCommand {
    let id = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("ID").help(help)
    };
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    let command = Command::new("chat")
        .about("Chat with the agent in the terminal or through a pipe")
        .long_about(
            "Chat with the agent in the terminal or through a pipe. If stdin is not a terminal, bub sends each line as a \
             message and prints the answers.",
        )
        .after_help(
            "Exit codes: 0 success, 1 a turn in a pipe failed, 2 invalid arguments or configuration, or no model, 129 terminal \
             closed, 130 interrupted, 143 terminated",
        )
        .arg(id("chat-id", "Chat within the `cli` channel").default_value("local"))
        .arg(id("session", "Session to use [default: cli:CHAT-ID]").alias("session-id").value_parser(parse_non_blank))
        .arg(flag("continue", "Continue the most recent session of this workspace").short('c').conflicts_with("session"))
        .arg(flag("plain", "Disable colors and cursor movement, for screen readers"));
    let chat = Arc::clone(chat);
    AppCommand::new(command, move |context| run(context, Arc::clone(&chat)))
}

fn parse_non_blank(id: &str) -> Result<String, String> {
    if id.trim().is_empty() {
        Err("the value must not be empty".to_owned())
    } else {
        Ok(id.to_owned())
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
    fn from_matches(matches: &ArgMatches, environment: &Environment) -> Self {
        let is_dumb = environment
            .get("TERM")
            .is_none_or(|name| name == "dumb" || name.is_empty());
        match (
            std::io::stdin().is_terminal(),
            std::io::stdout().is_terminal(),
        ) {
            (false, _) => Self::Pipe,
            (true, true) if !is_dumb && !matches.get_flag("plain") => Self::Screen,
            (true, _) => Self::Lines,
        }
    }
}

async fn run(context: CommandContext, chat: Arc<ChatHooks>) -> Result<ExitCode> {
    let CommandContext {
        framework,
        matches,
        settings,
        plugin_prompt,
        ..
    } = context;
    let mode = ChatMode::from_matches(&matches, settings.environment());
    logging::suppress_turn_failures();
    let outcome = framework.run_scoped(async {
        let (event_sender, chat_events) = ChatEventSender::new();
        let session = ChatSession::choose(&framework, &matches).await?;
        let chat_controller = ChatController::new(
            &framework,
            &settings,
            event_sender.clone(),
            mode != ChatMode::Pipe,
            session,
        );
        chat.attach(&chat_controller);
        if mode != ChatMode::Pipe {
            plugin_prompt.attach_chat(&event_sender);
        }
        let Some(gateway) = open(&framework, &settings, &chat_controller, mode)? else {
            return Ok((ChatExit::Quit, chat_controller, None));
        };
        // Not earlier: a signal must end the question in `open` immediately.
        let stop = if mode == ChatMode::Lines {
            signals::listen_without_interrupt()
        } else {
            signals::listen_for_stop()
        };
        let remote = gateway.handle();
        // Not later: turns of this chat add replies.
        let recovered_replies = remote.queued_reply_count();
        chat_controller.set_gateway(remote.clone());
        // Cancelled when the user leaves or the program is stopped: the gateway finishes what it can.
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
            let plain = PlainChatOptions {
                host: Arc::clone(&chat_controller) as _,
                chat_events,
                recovered_replies,
                input_end: stop.token(),
                stop: finished.clone(),
                redactor: settings.redactor().clone(),
            };
            match mode {
                ChatMode::Pipe => run_pipe_chat(plain, std::io::stdout().is_terminal()).await,
                ChatMode::Lines => {
                    run_line_chat(&framework, &settings, &chat_controller, plain).await
                }
                ChatMode::Screen => {
                    run_screen_chat(&framework, &settings, &chat_controller, plain, event_sender)
                        .await
                }
            }
        };
        let serving = async {
            let _finish = finished.clone().drop_guard();
            let served = gateway.run(ended.clone(), || {
                let _ = ready.send(());
            });
            served.await
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
            remove_journal(&chat_controller.journal_directory());
        }
        served?;
        if remote.unfinished_count() > 0 {
            let _ = writeln!(
                std::io::stderr(),
                "stopped; unfinished messages resume at the next `bub chat`"
            );
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
    framework: &Framework,
    settings: &Settings,
    chat_controller: &ChatController,
    plain: PlainChatOptions,
) -> Result<ChatExit> {
    let home = settings.get(&HOME);
    let (history, _) = History::open(&home, framework.workspace_text());
    let welcome = welcome(framework, chat_controller, "Ctrl-C cancels").await;
    plain_chat::run_plain_chat(plain, history, welcome, &prompt(framework)).await
}

/// Runs the chat with colors and cursor movement.
async fn run_screen_chat(
    framework: &Framework,
    settings: &Arc<Settings>,
    chat_controller: &Arc<ChatController>,
    plain: PlainChatOptions,
    event_sender: ChatEventSender,
) -> Result<ChatExit> {
    let controller = Arc::clone(chat_controller);
    drop(tokio::spawn(async move { controller.send_status().await }));
    let _log = logging::LogRedirectGuard::new(event_sender);
    let chat_options = ChatOptions {
        host: plain.host,
        chat_events: plain.chat_events,
        stop: plain.stop,
        home: settings.get(&HOME),
        workspace: framework.workspace_text().to_owned(),
        welcome: welcome(framework, chat_controller, KEY_HINTS).await,
        words: completion_items(framework, settings),
        status: chat_controller.status().await,
        redactor: plain.redactor,
        color_mode: color_mode(settings.environment()),
        reflows: rewraps_lines(settings.environment()),
    };
    chat::run_chat(chat_options).await
}

/// Opens the gateway with the journal of the chat.
///
/// If another process has the journal open, asks whether to start a new session. Returns `None` if the user declines.
fn open(
    framework: &Framework,
    settings: &Settings,
    chat_controller: &ChatController,
    mode: ChatMode,
) -> Result<Option<Gateway>> {
    let mut is_retry = false;
    loop {
        let mut options = GatewayOptions::new(settings, &chat_controller.journal());
        (options.stream_output, options.drain) = (true, DRAIN_TIMEOUT);
        match Gateway::with_channels(framework, options, |handler| {
            vec![chat_controller.channel(handler)]
        }) {
            Err(error) if error.kind() == ErrorKind::InUse && !is_retry => {
                if mode == ChatMode::Pipe {
                    // A program expects exactly the session that it names.
                    return Err(Error::config(format!(
                        "session `{}` is open in another chat; leave that chat, or pass another `--session`",
                        chat_controller.session()
                    )));
                }
                if !confirm_new_session(&chat_controller.session())? {
                    return Ok(None);
                }
                chat_controller.start_new_chat();
                is_retry = true;
                let _ = writeln!(
                    std::io::stderr(),
                    "the session is open in another chat; started a new session: {}",
                    chat_controller.session()
                );
            }
            outcome => return outcome.map(Some),
        }
    }
}

fn confirm_new_session(session: &str) -> Result<bool> {
    let mut out = std::io::stdout();
    loop {
        write!(
            out,
            "Session {session} is open in another chat. Start a new one? [Y/n] "
        )?;
        out.flush()?;
        let mut line = String::new();
        let is_end = std::io::stdin().read_line(&mut line)? == 0;
        match line.trim().to_ascii_lowercase().as_str() {
            "n" | "no" => return Ok(false),
            "" | "y" | "yes" => return Ok(!is_end),
            _ => {}
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

const KEY_HINTS: &str = "Tab completes · Alt-Enter new line · Ctrl-X shell mode";

/// H-155: returns the lines at the start of a chat: version, workspace, model, session, and key hints.
async fn welcome(
    framework: &Framework,
    chat_controller: &ChatController,
    keys: &str,
) -> Vec<String> {
    let status = chat_controller.status().await;
    let model = if status.model.is_empty() {
        "selected at the first message"
    } else {
        &status.model
    };
    vec![
        format!("Bub {}", env!("CARGO_PKG_VERSION")),
        format!("workspace: {}", framework.workspace_text()),
        format!("model: {model}"),
        format!("session: {}", status.session),
        format!(",help lists commands · {keys} · Ctrl-D leaves"),
    ]
}

fn prompt(framework: &Framework) -> String {
    let name = framework
        .workspace_text()
        .rsplit('/')
        .next()
        .unwrap_or_default();
    format!("{name} >")
}

/// Returns the commands and skills that Tab completes.
fn completion_items(framework: &Framework, settings: &Arc<Settings>) -> CompletionItems {
    let mut commands: Vec<CompletionItem> = framework
        .tools()
        .iter()
        .map(|tool| {
            let spec = tool.spec();
            let argument = |(name, is_required): (&str, bool)| {
                if is_required {
                    name.to_owned()
                } else {
                    format!("[{name}]")
                }
            };
            let arguments: Vec<String> = spec.parameters().into_iter().map(argument).collect();
            let about = spec
                .description
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned();
            CompletionItem {
                text: spec.name.clone(),
                about,
                arguments: arguments.join(" "),
            }
        })
        .collect();
    let item = |text: &str, about: &str| CompletionItem {
        text: text.to_owned(),
        about: about.to_owned(),
        arguments: String::new(),
    };
    commands.push(item("thinking", "Show or hide model reasoning"));
    commands.push(item("exit", "Leave the chat (same as ,quit)"));
    commands.sort_by(|a, b| a.text.cmp(&b.text));
    let skills = Skills::new(settings).list(Some(framework.workspace()));
    let skill = |skill: &Arc<bub_agent::Skill>| item(skill.name(), skill.description());
    CompletionItems {
        commands,
        skills: skills.iter().map(skill).collect(),
        sessions: Vec::new(),
    }
}

fn color_mode(environment: &Environment) -> ColorMode {
    let is_disabled = environment
        .get("NO_COLOR")
        .is_some_and(|value| !value.is_empty());
    if is_disabled {
        ColorMode::Attributes
    } else {
        ColorMode::Colors
    }
}

/// Returns whether the terminal rewraps its lines when it becomes narrower. Only the terminals listed here do not.
fn rewraps_lines(environment: &Environment) -> bool {
    let name = environment
        .get("TERM")
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let is_screen = name.starts_with("screen") && environment.get("TMUX").is_none();
    let is_old =
        name == "linux" || name.starts_with("vt") || environment.get("XTERM_VERSION").is_some();
    !is_screen && !is_old
}
