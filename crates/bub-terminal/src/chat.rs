//! The interactive chat: reads keys, and draws turns and the line editor on one screen.

mod command;
mod events;
mod input;
mod live;
mod state;

use std::{
    io::{self, Stdout},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

pub use command::resolve_slash;
pub(crate) use command::{ChatCommand, leave_hint};
pub(crate) use state::ChatState;

use bub_kernel::{CancellationToken, Error, Result};
use bub_settings::Redactor;
use futures_util::future::OptionFuture;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::{Instant, sleep_until},
};

use crate::{
    ColorMode, Line, Style,
    channel::ChatEvent,
    editor::{CompletionItems, Editor},
    history::History,
    host::ChatHost,
    keys::KeyDecoder,
    sanitize::sanitize_line,
    screen::{LiveArea, Screen, TerminalSize},
    spinner::SPINNER_INTERVAL,
    split_at_width,
    tty::{self, ModeGuard},
    turn_view::{StatusLine, TurnView},
};

/// Delay between a stream event and the next drawing. It limits the frame rate.
const FRAME_INTERVAL: Duration = Duration::from_millis(33);
/// How long the chat waits after an escape byte for the rest of a key sequence.
const ESCAPE_TIMEOUT: Duration = Duration::from_millis(40);
/// How long the window size must be stable before the chat draws again. Terminals report a new size late; tmux needs up
/// to a quarter of a second. Output for the old size would appear at wrong positions.
const RESIZE_DEBOUNCE: Duration = Duration::from_millis(300);
/// Maximum number of events handled before the screen is drawn again.
const MAX_EVENTS_PER_FRAME: usize = 512;
/// Options of an interactive chat.
pub struct ChatOptions {
    /// The program that runs the chat.
    pub host: Arc<dyn ChatHost>,
    /// A line to submit at the start.
    pub first_line: Option<String>,
    /// The events to show.
    pub chat_events: mpsc::Receiver<ChatEvent>,
    /// Ends the chat without cancelling the running turn.
    pub stop: CancellationToken,
    /// The home directory; history files are in its `history` directory.
    pub home: PathBuf,
    /// The workspace path. It selects the history file, and its last component is shown before the typed text.
    pub workspace: String,
    /// Lines printed at the start.
    pub welcome: Vec<String>,
    /// The last exchange of the session, if the chat continues one.
    pub last_exchange: Option<LastExchange>,
    /// Words that Tab completes.
    pub words: CompletionItems,
    /// The initial status of the session.
    pub status: StatusLine,
    /// Removes secrets from all output.
    pub redactor: Redactor,
    /// Which escape sequences may be written.
    pub color_mode: ColorMode,
    /// Whether the terminal rewraps its lines when its width changes.
    pub reflows: bool,
}

/// The last message of a session and its answer, shown when a chat continues the session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LastExchange {
    /// The user's message.
    pub message: String,
    /// The answer. Empty if the message was not answered.
    pub answer: String,
}

/// How a chat ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatExit {
    /// The user left.
    Quit,
    /// The program was stopped, or the terminal was closed.
    Stopped,
}

/// An interactive chat: its screen, its editor, its lines and the running turn.
struct ChatScreen {
    screen: Screen<Stdout>,
    raw_mode: Option<ModeGuard>,
    state: ChatState,
    editor: Editor,
    name: String,
    /// The last known size of the terminal.
    size: TerminalSize,
    /// The time at which the window size counts as stable. `None` if the window is not being resized.
    resizing: Option<Instant>,
    status: StatusLine,
    /// Whether the running turn runs a command. If no turn is running, this applies to the next turn.
    runs_command: bool,
    /// Lines that no turn has picked up yet: typed during a turn, or left unanswered by an earlier chat. They are shown
    /// in the live area.
    queued: Vec<QueuedLine>,
    /// The queued line whose withdrawal was requested last.
    withdrawing: Option<u64>,
    /// The text that was in the editor when a question arrived. It is restored after the answer.
    draft: Option<String>,
    /// A hint that is shown instead of the status line, and until when. Without a time, it is shown until the next key.
    hint: Option<(String, Option<Instant>)>,
    /// A line that starts with `/` and names no command. If the user submits it again, it is sent as text.
    unknown_command: Option<String>,
    is_history_error_reported: bool,
    exit: Option<ChatExit>,
}

/// A line that was typed during a turn, or that an earlier chat left unanswered.
struct QueuedLine {
    line: u64,
    text: String,
    steers: bool,
    /// Whether the line is on disk.
    is_accepted: bool,
}

/// Runs a chat until the user leaves, `stop` is cancelled, or the terminal is closed.
///
/// # Errors
///
/// Fails if the terminal cannot be read, written, or set to raw mode.
pub async fn run_chat(chat_options: ChatOptions) -> Result<ChatExit> {
    let mut resized = signal(SignalKind::window_change()).map_err(terminal_error)?;
    let raw_mode = ModeGuard::raw_mode().map_err(terminal_error)?;
    let mut input = tty::spawn_input_reader().map_err(terminal_error)?;
    let (mut chat, mut chat_events, stop) = ChatScreen::new(chat_options, raw_mode);
    let mut decoder = KeyDecoder::default();
    let mut draw_at = Some(Instant::now());
    loop {
        if draw_at.is_some_and(|at| at <= Instant::now()) {
            draw_at = chat.draw()?;
        }
        if let Some(exit) = chat.exit {
            while let Ok(chat_event) = chat_events.try_recv() {
                chat.handle_event(chat_event);
            }
            return chat.leave(exit, chat_events).await;
        }
        let spin = chat
            .state
            .is_busy()
            .then(|| Instant::now() + SPINNER_INTERVAL);
        let hint_end = chat.hint.as_ref().and_then(|(_, until)| *until);
        let wake = [draw_at, spin, hint_end].into_iter().flatten().min();
        let is_urgent = tokio::select! {
            biased;
            () = stop.cancelled() => {
                chat.exit = Some(ChatExit::Stopped);
                true
            }
            bytes = input.recv() => {
                match bytes {
                    Some(bytes) => chat.handle_keys(decoder.feed(&bytes)).await?,
                    None => chat.exit = Some(ChatExit::Stopped),
                }
                true
            }
            () = tokio::time::sleep(ESCAPE_TIMEOUT), if decoder.has_pending() => {
                chat.handle_keys(decoder.flush()).await?;
                true
            }
            _ = resized.recv() => {
                chat.handle_resize();
                true
            }
            Some(chat_event) = chat_events.recv() => {
                chat.handle_event(chat_event);
                for _ in 0..MAX_EVENTS_PER_FRAME {
                    let Ok(chat_event) = chat_events.try_recv() else { break };
                    chat.handle_event(chat_event);
                }
                false
            }
            Some(()) = OptionFuture::from(wake.map(sleep_until)) => true,
        };
        let delay = if is_urgent {
            Duration::ZERO
        } else {
            FRAME_INTERVAL
        };
        let at = Instant::now() + delay;
        draw_at = Some(draw_at.map_or(at, |planned| planned.min(at)));
    }
}

impl ChatScreen {
    /// Creates the chat. Also returns the receiver of its events and the token that ends it.
    fn new(
        chat_options: ChatOptions,
        raw_mode: ModeGuard,
    ) -> (Self, mpsc::Receiver<ChatEvent>, CancellationToken) {
        let size = tty::size();
        let (history, read) = History::open(&chat_options.home, &chat_options.workspace);
        let name = chat_options.workspace.rsplit('/').next();
        let name = name.unwrap_or_default().to_owned();
        let color_mode = chat_options.color_mode;
        let view = TurnView::new(size.columns, color_mode, chat_options.redactor)
            .with_expand_hint("Ctrl-O shows all".to_owned());
        let mut chat = Self {
            screen: Screen::new(io::stdout(), size, color_mode, chat_options.reflows),
            raw_mode: Some(raw_mode),
            state: ChatState::new(view, history, chat_options.host),
            editor: Editor::new(chat_options.words),
            name,
            size,
            resizing: None,
            status: chat_options.status,
            runs_command: false,
            queued: Vec::new(),
            withdrawing: None,
            draft: None,
            hint: None,
            unknown_command: None,
            is_history_error_reported: false,
            exit: None,
        };
        chat.state.view.show_welcome(&chat_options.welcome);
        chat.state.view.push_line(Line::default());
        if let Some(last) = chat_options.last_exchange {
            chat.echo_line(&last.message, " (earlier)");
            chat.state.view.show_message(&last.answer, false);
        }
        if let Err(error) = read {
            chat.report_history_error(&error);
        }
        if let Some(text) = chat_options.first_line {
            chat.submit_text(text);
        }
        (chat, chat_options.chat_events, chat_options.stop)
    }

    /// Draws new finished lines and the live area. While the window is being resized, draws nothing and returns the
    /// time of the next attempt.
    fn draw(&mut self) -> Result<Option<Instant>> {
        if tty::size() != self.size {
            self.handle_resize();
        }
        if let Some(until) = self.resizing {
            if until > Instant::now() {
                return Ok(Some(until));
            }
            self.resizing = None;
            self.screen.resize(self.size).map_err(terminal_error)?;
        }
        let now = Instant::now();
        self.hint
            .take_if(|(_, until)| until.is_some_and(|until| until <= now));
        let live_area = self.build_live_area();
        let lines = self.state.view.take_lines();
        self.screen
            .draw(&lines, &live_area)
            .map_err(terminal_error)?;
        Ok(None)
    }

    /// Reads the new window size and delays drawing until the size is stable.
    fn handle_resize(&mut self) {
        self.size = tty::size();
        self.resizing = Some(Instant::now() + RESIZE_DEBOUNCE);
        self.state.view.set_width(self.size.columns);
    }

    /// Leaves the chat: cancels all turns if the user quit, draws the last lines, and restores the terminal.
    async fn leave(
        mut self,
        exit: ChatExit,
        chat_events: mpsc::Receiver<ChatEvent>,
    ) -> Result<ChatExit> {
        match exit {
            ChatExit::Quit => self.state.quit(chat_events).await,
            ChatExit::Stopped => self.state.view.end_turn(false),
        }
        if self.resizing.is_some() {
            let _ = self.screen.resize(self.size);
        }
        let lines = self.state.view.take_lines();
        // Ignore errors: the terminal may be closed.
        let _ = self.screen.draw(&lines, &LiveArea::default());
        let _ = self.screen.clear_live_area();
        self.raw_mode = None;
        Ok(exit)
    }

    /// Shows a hint instead of the status line, until the next key.
    fn set_hint(&mut self, text: impl Into<String>) {
        self.hint = Some((text.into(), None));
    }

    /// Returns the text before the edited line: the workspace name, or a comma in shell mode.
    fn prompt(&self) -> Line {
        if self.editor.is_shell {
            return Line::new(", ", Style::BOLD | Style::CYAN);
        }
        self.workspace_prompt()
    }

    fn workspace_prompt(&self) -> Line {
        let width = self.screen.size().columns;
        let name = sanitize_line(&self.name);
        let name = split_at_width(&name, (width / 3).max(1)).0;
        Line::new(format!("{name} > "), Style::BOLD)
    }

    fn report_history_error(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.is_history_error_reported, true) {
            let file = self.state.history.file().display();
            let text =
                format!("cannot use history file {file}: {error}; lines are kept until you leave");
            self.state.view.show_notice(&text, Style::YELLOW);
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn terminal_error(error: io::Error) -> Error {
    Error::unknown(format!(
        "cannot use the terminal: {error}; try `bub chat --plain`"
    ))
}
