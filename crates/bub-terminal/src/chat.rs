//! The interactive chat: reads keys, shows turns, and draws both on one screen.

mod events;
mod input;
mod live;

use std::{
    collections::VecDeque,
    io::{self, Stdout},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use bub_kernel::{CancellationToken, Error, Result};
use bub_settings::Redactor;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::Instant,
};

use crate::{
    ColorMode, Line,
    channel::{ChatEvent, UserQuestion},
    editor::{CompletionItems, Editor},
    history::History,
    host::ChatHost,
    keys::KeyDecoder,
    screen::{Screen, TerminalSize},
    tty::{self, RawMode},
    turn_view::{StatusLine, TurnView},
};

/// Delay between a stream event and the next drawing. It limits the frame rate.
const FRAME_INTERVAL: Duration = Duration::from_millis(33);
/// How long the decoder waits after an escape byte for the rest of a key sequence.
const ESCAPE_TIMEOUT: Duration = Duration::from_millis(40);
/// Time between two frames of the spinner.
const SPINNER_INTERVAL: Duration = Duration::from_millis(120);
/// How long the window size must be stable before the chat draws again. Terminals report a new size late; tmux needs up
/// to a quarter of a second. Output for the old size would appear at wrong positions.
const RESIZE_DEBOUNCE: Duration = Duration::from_millis(300);
/// A second Ctrl-C within this time leaves the chat.
pub(crate) const DOUBLE_INTERRUPT_WINDOW: Duration = Duration::from_secs(2);
/// How long leaving waits for running turns to end.
pub(crate) const QUIT_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of events handled before the screen is drawn again.
const MAX_EVENTS_PER_FRAME: usize = 512;
/// Capacity of the queue of lines that the host has not accepted yet. Accepting a line takes one disk write.
///
/// The chat never waits for space in this queue: the submitting task may itself be waiting for the chat to handle an
/// event. If the queue is full, the line goes back to the editor.
const SUBMISSION_CAPACITY: usize = 64;

/// Options of an interactive chat.
pub struct ChatOptions {
    /// The program that runs the chat.
    pub host: Arc<dyn ChatHost>,
    /// The events to show.
    pub chat_events: mpsc::Receiver<ChatEvent>,
    /// Ends the chat without cancelling the running turn.
    pub stop: CancellationToken,
    /// The home directory; history files are in its `history` directory.
    pub home: PathBuf,
    /// The workspace path. It selects the history file, and its last component is the prompt.
    pub workspace: String,
    /// Lines printed at the start.
    pub welcome: Vec<String>,
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

/// How a chat ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatExit {
    /// The user left.
    Quit,
    /// The program was stopped, or the terminal was closed.
    Stopped,
}

/// The state of an interactive chat.
struct ChatScreen {
    screen: Screen<Stdout>,
    raw_mode: Option<RawMode>,
    view: TurnView,
    editor: Editor,
    history: History,
    host: Arc<dyn ChatHost>,
    /// Requests to the host, in order.
    submitted: mpsc::Sender<ChatHostRequest>,
    name: String,
    /// The last known size of the terminal.
    size: TerminalSize,
    /// The time at which the window size counts as stable. `None` if the window is not being resized.
    resizing: Option<Instant>,
    status: StatusLine,
    last_line: u64,
    /// Numbers of the submitted lines that have no outcome yet.
    open: Vec<u64>,
    /// Whether the turn that runs or starts next is a command.
    runs_command: bool,
    /// Lines typed during a turn that are not in the transcript yet.
    queued: Vec<QueuedLine>,
    /// The queued line whose withdrawal was requested last.
    withdrawing: Option<u64>,
    running: Option<RunningTurn>,
    questions: VecDeque<UserQuestion>,
    /// The text that was in the editor when a question arrived. It is restored after the answer.
    draft: Option<String>,
    /// When Ctrl-C was pressed last.
    interrupted: Option<Instant>,
    /// A hint that is shown instead of the status line.
    hint: Option<String>,
    is_history_error_reported: bool,
    is_leaving: bool,
    exit: Option<ChatExit>,
}

/// A request from the chat to its host.
pub(crate) enum ChatHostRequest {
    /// Submit a line.
    Line(u64, String),
    /// Withdraw the last queued line.
    Withdraw,
}

/// A line that was typed during a turn.
struct QueuedLine {
    line: u64,
    text: String,
    steers: bool,
    /// Whether the line is on disk.
    is_accepted: bool,
}

/// The running turn.
struct RunningTurn {
    line: Option<u64>,
    since: Instant,
    is_cancelled: bool,
    is_ended: bool,
}

/// Runs a chat until the user leaves, `stop` is cancelled, or the terminal is closed.
///
/// # Errors
///
/// Fails if the terminal cannot be read, written, or set to raw mode.
pub async fn run_chat(chat_options: ChatOptions) -> Result<ChatExit> {
    let mut resized = signal(SignalKind::window_change()).map_err(terminal_error)?;
    let raw_mode = RawMode::enter().map_err(terminal_error)?;
    let mut input = tty::spawn_input_reader().map_err(terminal_error)?;
    let (mut chat, mut chat_events, stop) = ChatScreen::new(chat_options, raw_mode);
    let mut decoder = KeyDecoder::default();
    let mut draw_at = Some(Instant::now());
    loop {
        if draw_at.is_some_and(|at| at <= Instant::now()) {
            draw_at = chat.draw()?;
        }
        if let Some(exit) = chat.exit {
            // Close the queue so that turns stop waiting for space in it and can end.
            chat_events.close();
            while let Ok(chat_event) = chat_events.try_recv() {
                chat.handle_event(chat_event);
            }
            return chat.leave(exit).await;
        }
        let spin = chat.is_busy().then(|| Instant::now() + SPINNER_INTERVAL);
        let wake = [draw_at, spin].into_iter().flatten().min();
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
            () = sleep_until(wake) => true,
        };
        let at = if is_urgent {
            Instant::now()
        } else {
            Instant::now() + FRAME_INTERVAL
        };
        draw_at = Some(draw_at.map_or(at, |planned| planned.min(at)));
    }
}

impl ChatScreen {
    /// Creates the chat. Also returns the receiver of its events and the token that ends it.
    fn new(
        chat_options: ChatOptions,
        raw_mode: RawMode,
    ) -> (Self, mpsc::Receiver<ChatEvent>, CancellationToken) {
        let size = tty::size();
        let (history, read) = History::open(&chat_options.home, &chat_options.workspace);
        let name = chat_options
            .workspace
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned();
        let mut chat = Self {
            screen: Screen::new(
                io::stdout(),
                size,
                chat_options.color_mode,
                chat_options.reflows,
            ),
            raw_mode: Some(raw_mode),
            view: TurnView::new(size.columns, chat_options.color_mode, chat_options.redactor),
            editor: Editor::new(chat_options.words),
            history,
            submitted: spawn_submitter(Arc::clone(&chat_options.host)),
            host: chat_options.host,
            name,
            size,
            resizing: None,
            status: chat_options.status,
            last_line: 0,
            open: Vec::new(),
            runs_command: false,
            queued: Vec::new(),
            withdrawing: None,
            running: None,
            questions: VecDeque::new(),
            draft: None,
            interrupted: None,
            hint: None,
            is_history_error_reported: false,
            is_leaving: false,
            exit: None,
        };
        chat.print_welcome(&chat_options.welcome);
        if let Err(error) = read {
            chat.report_history_error(&error);
        }
        (chat, chat_options.chat_events, chat_options.stop)
    }

    /// Draws the current state. While the window is being resized, draws nothing and returns the time of the next attempt.
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
        if self.is_busy() && self.interrupted.is_some() && !self.should_leave_on_interrupt() {
            // Another turn started: Ctrl-C cancels it and no longer leaves.
            (self.interrupted, self.hint) = (None, None);
        }
        let live_area = self.build_live_area();
        let lines = self.view.take_lines();
        self.screen
            .draw(&lines, &live_area)
            .map_err(terminal_error)?;
        Ok(None)
    }

    /// Returns whether a turn is running or a line has no outcome yet.
    fn is_busy(&self) -> bool {
        self.running.is_some() || !self.open.is_empty()
    }

    /// Reads the new window size and delays drawing until the size is stable.
    fn handle_resize(&mut self) {
        self.size = tty::size();
        self.resizing = Some(Instant::now() + RESIZE_DEBOUNCE);
        self.view.set_width(self.size.columns);
    }

    fn print_welcome(&mut self, lines: &[String]) {
        for line in lines {
            self.view.show_notice(line, crate::Style::DIM);
        }
        self.view.push_line(Line::default());
    }

    /// Ends the turn view, draws the last lines and restores the terminal.
    async fn leave(mut self, exit: ChatExit) -> Result<ChatExit> {
        if exit == ChatExit::Quit {
            // Turns that do not end in time are interrupted when the program exits.
            let _ = tokio::time::timeout(QUIT_TIMEOUT, self.host.cancel_all()).await;
        }
        let is_interrupted = self.running.as_ref().is_some_and(|turn| !turn.is_ended);
        self.view.end_turn(is_interrupted && exit == ChatExit::Quit);
        if exit == ChatExit::Quit {
            self.view.show_notice("Bye.", crate::Style::NONE);
        }
        if self.resizing.is_some() {
            let _ = self.screen.resize(self.size);
        }
        let lines = self.view.take_lines();
        // Ignore errors: the terminal may be closed.
        let _ = self
            .screen
            .draw(&lines, &crate::screen::LiveArea::default());
        let _ = self.screen.clear_live_area();
        self.raw_mode = None;
        Ok(exit)
    }

    /// Returns the prompt: the workspace name, or a comma in shell mode.
    fn prompt(&self) -> Line {
        if self.editor.is_shell() {
            return Line::new(", ", crate::Style::BOLD | crate::Style::CYAN);
        }
        self.workspace_prompt()
    }

    fn workspace_prompt(&self) -> Line {
        let width = self.screen.size().columns;
        let name = crate::sanitize::sanitize_line(&self.name);
        let name = crate::split_at_width(&name, (width / 3).max(1)).0;
        Line::new(format!("{name} > "), crate::Style::BOLD)
    }

    fn report_history_error(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.is_history_error_reported, true) {
            let file = self.history.file().display();
            let text =
                format!("cannot use history file {file}: {error}; lines are kept until you leave");
            self.view.show_notice(&text, crate::Style::YELLOW);
        }
    }
}

/// Starts a task that passes requests to the host in order.
pub(crate) fn spawn_submitter(host: Arc<dyn ChatHost>) -> mpsc::Sender<ChatHostRequest> {
    let (sender, mut submissions) = mpsc::channel(SUBMISSION_CAPACITY);
    drop(tokio::spawn(async move {
        while let Some(submission) = submissions.recv().await {
            match submission {
                ChatHostRequest::Line(line, text) => host.submit_line(line, text).await,
                ChatHostRequest::Withdraw => host.withdraw_line(),
            }
        }
    }));
    sender
}

/// Sleeps until a time, or forever without one.
async fn sleep_until(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn terminal_error(error: io::Error) -> Error {
    Error::unknown(format!(
        "cannot use the terminal: {error}; try `bub chat --plain`"
    ))
}

impl std::fmt::Debug for ChatOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatOptions")
            .field("workspace", &self.workspace)
            .finish_non_exhaustive()
    }
}
