//! `bub chat`: a conversation at the terminal.
//!
//! It is a gateway of one chat: a channel at the terminal (`bub-terminal`), a journal of its own, and the lanes, steering
//! and queueing that every channel has. `desk` is what stands between them, `session` which session it is about.

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
    plain_chat::{self, PlainChatOptions},
};
use clap::{Arg, ArgAction, ArgMatches, Command};
use tokio::sync::oneshot;

pub(crate) use self::controller::ChatHooks;
use self::{controller::ChatController, session::ChatSession};
use bub::{logging, signals};

/// A turn that runs when the program is stopped has so long to end; then it goes on at the next chat.
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
        .arg(id("session", "Session to use [default: cli:CHAT-ID]").alias("session-id").value_parser(not_blank))
        .arg(flag("continue", "Continue the most recent session of this workspace").short('c').conflicts_with("session"))
        .arg(flag("plain", "Disable colors and cursor movement, for screen readers"));
    let chat = Arc::clone(chat);
    AppCommand::new(command, move |context| run(context, Arc::clone(&chat)))
}

fn not_blank(id: &str) -> Result<String, String> {
    if id.trim().is_empty() {
        Err("the value is empty".to_owned())
    } else {
        Ok(id.to_owned())
    }
}

/// How the chat is held.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChatMode {
    /// On a screen.
    Screen,
    /// In lines, with a person.
    Lines,
    /// With a program.
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
            plugin_prompt.attach(&event_sender);
        }
        let Some(gateway) = open(&framework, &settings, &chat_controller, mode)? else {
            return Ok((ChatExit::Quit, chat_controller, None));
        };
        // Not before: a signal ends the question above at once.
        let stop = if mode == ChatMode::Lines {
            signals::listen_without_interrupt()
        } else {
            signals::listen()
        };
        let remote = gateway.remote();
        chat_controller.set_gateway(remote.clone());
        // The user has left, or the program is stopped: the gateway finishes what it can.
        let ended = CancellationToken::new();
        // The gateway has finished: the chat has every event that there will be.
        let finished = CancellationToken::new();
        let (ready, is_ready) = oneshot::channel();
        let talking = async {
            let _end = ended.clone().drop_guard();
            // Nothing may be said before the gateway has taken up what was left.
            if is_ready.await.is_err() {
                return Ok(ChatExit::Quit);
            }
            let plain = PlainChatOptions {
                host: Arc::clone(&chat_controller) as _,
                chat_events,
                stop: finished.clone(),
                redactor: settings.redactor().clone(),
            };
            match mode {
                ChatMode::Pipe => plain_chat::pipe(plain, std::io::stdout().is_terminal()).await,
                ChatMode::Lines => {
                    let home = settings.get(&HOME);
                    let (history, _) = History::open(&home, framework.workspace_text());
                    let welcome = welcome(&framework, &chat_controller, "Ctrl-C cancels").await;
                    plain_chat::run_plain_chat(plain, history, welcome, &prompt(&framework)).await
                }
                ChatMode::Screen => {
                    converse(&framework, &settings, &chat_controller, plain, event_sender).await
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
        let (left, served, ()) = tokio::join!(talking, serving, stopping);
        if remote.is_settled() {
            remove(&chat_controller.directory());
        }
        served?;
        if remote.unfinished() > 0 {
            let _ = writeln!(
                std::io::stderr(),
                "stopped; what was unfinished goes on at the next `bub chat`"
            );
        }
        Ok((left?, chat_controller, Some(stop)))
    });
    let (left, chat_controller, stop) = outcome.await?;
    match (stop, mode) {
        (Some(stop), _) if left == ChatExit::Stopped && stop.token().is_cancelled() => {
            Ok(stop.exit_code())
        }
        (_, ChatMode::Pipe) => chat_controller.exit_code(),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// The chat on a screen.
async fn converse(
    framework: &Framework,
    settings: &Arc<Settings>,
    chat_controller: &Arc<ChatController>,
    plain: PlainChatOptions,
    event_sender: ChatEventSender,
) -> Result<ChatExit> {
    let looking = Arc::clone(chat_controller);
    drop(tokio::spawn(async move { looking.send_status().await }));
    let _log = logging::LogRedirectGuard::to(event_sender);
    let chat_options = ChatOptions {
        host: plain.host,
        chat_events: plain.chat_events,
        stop: plain.stop,
        home: settings.get(&HOME),
        workspace: framework.workspace_text().to_owned(),
        welcome: welcome(framework, chat_controller, KEY_HINTS).await,
        words: words(framework, settings),
        status: chat_controller.status().await,
        redactor: plain.redactor,
        color_mode: color_mode(settings.environment()),
        reflows: reflows(settings.environment()),
    };
    chat::run(chat_options).await
}

/// Opens the journal of the chat; when another chat has it, one of a new chat, if that is wanted.
fn open(
    framework: &Framework,
    settings: &Settings,
    chat_controller: &ChatController,
    mode: ChatMode,
) -> Result<Option<Gateway>> {
    let mut is_second = false;
    loop {
        let mut options = GatewayOptions::new(settings, &chat_controller.journal());
        (options.stream_output, options.drain) = (true, DRAIN_TIMEOUT);
        match Gateway::with_channels(framework, options, |handler| {
            vec![chat_controller.channel(handler)]
        }) {
            Err(error) if error.kind() == ErrorKind::InUse && !is_second => {
                if mode == ChatMode::Pipe {
                    // A program means the session that it names.
                    return Err(Error::config(format!(
                        "session {} is open in another chat",
                        chat_controller.session()
                    )));
                }
                if !wants_another(&chat_controller.session())? {
                    return Ok(None);
                }
                chat_controller.begin_another();
                is_second = true;
                let _ = writeln!(
                    std::io::stderr(),
                    "the session is open in another chat; this is a new one: {}",
                    chat_controller.session()
                );
            }
            outcome => return outcome.map(Some),
        }
    }
}

fn wants_another(session: &str) -> Result<bool> {
    let mut out = std::io::stdout();
    loop {
        write!(
            out,
            "Session {session} is open in another chat. Begin a new one? [Y/n] "
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

/// Removes the directory of a journal in which nothing is left, unless somebody uses it by now.
fn remove(directory: &Path) {
    let lock = directory.join("lock");
    let Ok(guard) = RealFs.open(&lock, OpenMode::Write) else {
        return;
    };
    if guard.try_lock().unwrap_or(false) {
        let _ = std::fs::remove_dir_all(directory);
    }
}

const KEY_HINTS: &str = "Tab completes · Alt-Enter new line · Ctrl-X shell mode";

/// H-155: who, where, with which model, and what can be typed.
async fn welcome(
    framework: &Framework,
    chat_controller: &ChatController,
    keys: &str,
) -> Vec<String> {
    let status = chat_controller.status().await;
    let model = if status.model.is_empty() {
        "chosen at the first message"
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

/// What Tab completes.
fn words(framework: &Framework, settings: &Arc<Settings>) -> CompletionItems {
    let mut commands: Vec<CompletionItem> = framework
        .tools()
        .iter()
        .map(|tool| {
            let spec = tool.spec();
            let argument = |(name, must): (&str, bool)| {
                if must {
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
    let own = |text: &str, about: &str| CompletionItem {
        text: text.to_owned(),
        about: about.to_owned(),
        arguments: String::new(),
    };
    commands.push(own(
        "thinking",
        "Shows or hides the reasoning of the model.",
    ));
    commands.push(own("exit", "Leaves the chat."));
    commands.sort_by(|one, other| one.text.cmp(&other.text));
    let skills = Skills::new(settings).list(Some(framework.workspace()));
    let skill = |skill: &Arc<bub_agent::Skill>| own(skill.name(), skill.description());
    CompletionItems {
        commands,
        skills: skills.iter().map(skill).collect(),
        sessions: Vec::new(),
    }
}

fn color_mode(environment: &Environment) -> ColorMode {
    let is_refused = environment
        .get("NO_COLOR")
        .is_some_and(|value| !value.is_empty());
    if is_refused {
        ColorMode::Attributes
    } else {
        ColorMode::Colors
    }
}

/// Most terminals wrap their lines anew when they are made narrower; these are known not to.
fn reflows(environment: &Environment) -> bool {
    let name = environment
        .get("TERM")
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let is_screen = name.starts_with("screen") && environment.get("TMUX").is_none();
    let is_old =
        name == "linux" || name.starts_with("vt") || environment.get("XTERM_VERSION").is_some();
    !is_screen && !is_old
}
