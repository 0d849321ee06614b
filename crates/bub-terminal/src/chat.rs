//! A chat at a terminal: keys in, turns out, and one screen for both.

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

/// What is on its way is shown this often.
const FRAME_INTERVAL: Duration = Duration::from_millis(33);
/// How long an escape waits for what may follow it.
const ESCAPE_TIMEOUT: Duration = Duration::from_millis(40);
/// How often the spinner turns.
const SPINNER_INTERVAL: Duration = Duration::from_millis(120);
/// Nothing is drawn until the window has kept its size for so long: terminals tell of it late (tmux up to a quarter of
/// a second), and what is drawn for another size than they have by then ends up in the wrong place.
const RESIZE_DEBOUNCE: Duration = Duration::from_millis(300);
/// A second Ctrl-C within this time leaves.
pub(crate) const DOUBLE_INTERRUPT_WINDOW: Duration = Duration::from_secs(2);
/// So long what runs may take to end when the person leaves.
pub(crate) const QUIT_TIMEOUT: Duration = Duration::from_secs(3);
/// So many happenings are taken before the screen is drawn again.
const MAX_EVENTS_PER_FRAME: usize = 512;
/// Lines that may wait for the host to accept them, which takes as long as one write to the disk each. The chat never
/// waits for room, because the task that hands lines in waits for the chat to hear of the last one: a line for which
/// there is no room goes back to the editor.
const SUBMISSION_CAPACITY: usize = 64;

/// What a chat is made of.
pub struct ChatOptions {
    /// The program around it.
    pub host: Arc<dyn ChatHost>,
    /// What it is told.
    pub chat_events: mpsc::Receiver<ChatEvent>,
    /// Ends it, without ending what runs.
    pub stop: CancellationToken,
    /// Where the histories are.
    pub home: PathBuf,
    /// The workspace, as text.
    pub workspace: String,
    /// What is printed first.
    pub welcome: Vec<String>,
    /// What can be completed.
    pub words: CompletionItems,
    /// How the session is.
    pub status: StatusLine,
    /// What must not be shown.
    pub redactor: Redactor,
    /// What may be written beside text.
    pub color_mode: ColorMode,
    /// Whether the terminal wraps its lines anew when its width changes.
    pub reflows: bool,
}

/// How a chat ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatExit {
    /// The person left.
    Quit,
    /// Somebody stopped the program, or the terminal is gone.
    Stopped,
}

struct ChatScreen {
    screen: Screen<Stdout>,
    raw: Option<RawMode>,
    view: TurnView,
    editor: Editor,
    history: History,
    host: Arc<dyn ChatHost>,
    /// What is on its way to the host, in order.
    submitted: mpsc::Sender<ChatHostRequest>,
    name: String,
    /// The size that was last seen, and until when it may still change.
    size: TerminalSize,
    resizing: Option<Instant>,
    status: StatusLine,
    last_line: u64,
    /// Lines that are not settled.
    open: Vec<u64>,
    /// Whether what runs, or is about to, is a command.
    runs_command: bool,
    /// Lines that wait to be seen where they belong.
    waiting: Vec<QueuedLine>,
    /// The line that was last asked for back.
    taking: Option<u64>,
    running: Option<RunningTurn>,
    questions: VecDeque<UserQuestion>,
    /// What was being written when a question came.
    draft: Option<String>,
    interrupted: Option<Instant>,
    /// What is to be known right now.
    hint: Option<String>,
    was_history_refused: bool,
    is_leaving: bool,
    left: Option<ChatExit>,
}

/// What the chat asks of the host.
pub(crate) enum ChatHostRequest {
    /// Answer a line.
    Line(u64, String),
    /// Take back the last line that waits.
    Withdraw,
}

/// A line that was typed while a turn ran.
struct QueuedLine {
    line: u64,
    text: String,
    steers: bool,
    /// Whether it is on disk.
    is_taken: bool,
}

/// A turn that runs.
struct RunningTurn {
    line: Option<u64>,
    since: Instant,
    is_cancelled: bool,
    is_ended: bool,
}

/// Runs a chat until somebody leaves it.
pub async fn run(chat_options: ChatOptions) -> Result<ChatExit> {
    let mut resized = signal(SignalKind::window_change()).map_err(terminal_error)?;
    let raw = RawMode::enter().map_err(terminal_error)?;
    let mut typed = tty::typed().map_err(terminal_error)?;
    let (mut chat, mut chat_events, stop) = ChatScreen::new(chat_options, raw);
    let mut decoder = KeyDecoder::default();
    let mut draw_at = Some(Instant::now());
    loop {
        if draw_at.is_some_and(|at| at <= Instant::now()) {
            draw_at = chat.draw()?;
        }
        if let Some(left) = chat.left {
            // From now on nobody waits for room to tell: what runs can end.
            chat_events.close();
            while let Ok(chat_event) = chat_events.try_recv() {
                chat.handle_event(chat_event);
            }
            return chat.leave(left).await;
        }
        let spin = chat.is_busy().then(|| Instant::now() + SPINNER_INTERVAL);
        let wake = [draw_at, spin].into_iter().flatten().min();
        let soon = tokio::select! {
            biased;
            () = stop.cancelled() => {
                chat.left = Some(ChatExit::Stopped);
                true
            }
            bytes = typed.recv() => {
                match bytes {
                    Some(bytes) => chat.typed(decoder.feed(&bytes)).await?,
                    None => chat.left = Some(ChatExit::Stopped),
                }
                true
            }
            () = tokio::time::sleep(ESCAPE_TIMEOUT), if decoder.is_waiting() => {
                chat.typed(decoder.flush()).await?;
                true
            }
            _ = resized.recv() => {
                chat.is_resized();
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
        let at = if soon {
            Instant::now()
        } else {
            Instant::now() + FRAME_INTERVAL
        };
        draw_at = Some(draw_at.map_or(at, |planned| planned.min(at)));
    }
}

impl ChatScreen {
    /// A chat on the screen, what it is told, and what ends it.
    fn new(
        chat_options: ChatOptions,
        raw: RawMode,
    ) -> (Self, mpsc::Receiver<ChatEvent>, CancellationToken) {
        let size = tty::size();
        let (history, was_read) = History::open(&chat_options.home, &chat_options.workspace);
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
            raw: Some(raw),
            view: TurnView::new(size.columns, chat_options.color_mode, chat_options.redactor),
            editor: Editor::new(chat_options.words),
            history,
            submitted: submitting(Arc::clone(&chat_options.host)),
            host: chat_options.host,
            name,
            size,
            resizing: None,
            status: chat_options.status,
            last_line: 0,
            open: Vec::new(),
            runs_command: false,
            waiting: Vec::new(),
            taking: None,
            running: None,
            questions: VecDeque::new(),
            draft: None,
            interrupted: None,
            hint: None,
            was_history_refused: false,
            is_leaving: false,
            left: None,
        };
        chat.welcome(&chat_options.welcome);
        if let Err(error) = was_read {
            chat.history_refused(&error);
        }
        (chat, chat_options.chat_events, chat_options.stop)
    }

    /// Shows everything as it is now; or says when, while the window changes.
    fn draw(&mut self) -> Result<Option<Instant>> {
        if tty::size() != self.size {
            self.is_resized();
        }
        if let Some(until) = self.resizing {
            if until > Instant::now() {
                return Ok(Some(until));
            }
            self.resizing = None;
            self.screen.resize(self.size).map_err(terminal_error)?;
        }
        if self.is_busy() && self.interrupted.is_some() && !self.leaves_at_interrupt() {
            // Ctrl-C means the turn again.
            (self.interrupted, self.hint) = (None, None);
        }
        let live = self.live();
        let lines = self.view.take_lines();
        self.screen.draw(&lines, &live).map_err(terminal_error)?;
        Ok(None)
    }

    /// Whether a turn runs or waits.
    fn is_busy(&self) -> bool {
        self.running.is_some() || !self.open.is_empty()
    }

    fn is_resized(&mut self) {
        self.size = tty::size();
        self.resizing = Some(Instant::now() + RESIZE_DEBOUNCE);
        self.view.set_width(self.size.columns);
    }

    fn welcome(&mut self, lines: &[String]) {
        for line in lines {
            self.view.notice(line, crate::Style::DIM);
        }
        self.view.line(Line::default());
    }

    /// The last words; the terminal is as it was.
    async fn leave(mut self, left: ChatExit) -> Result<ChatExit> {
        if left == ChatExit::Quit {
            // What does not end by then is interrupted when the program ends.
            let _ = tokio::time::timeout(QUIT_TIMEOUT, self.host.quit()).await;
        }
        let is_cut_off = self.running.as_ref().is_some_and(|turn| !turn.is_ended);
        self.view.end(is_cut_off && left == ChatExit::Quit);
        if left == ChatExit::Quit {
            self.view.notice("Bye.", crate::Style::NONE);
        }
        if self.resizing.is_some() {
            let _ = self.screen.resize(self.size);
        }
        let lines = self.view.take_lines();
        // A terminal that is gone needs no last words.
        let _ = self
            .screen
            .draw(&lines, &crate::screen::LiveArea::default());
        let _ = self.screen.clear();
        self.raw = None;
        Ok(left)
    }

    /// The prompt: the workspace, or the sign of commands.
    fn prompt(&self) -> Line {
        if self.editor.is_shell() {
            return Line::new(", ", crate::Style::BOLD | crate::Style::CYAN);
        }
        self.name_prompt()
    }

    fn name_prompt(&self) -> Line {
        let width = self.screen.size().columns;
        let name = crate::sanitize::line(&self.name);
        let name = crate::fit(&name, (width / 3).max(1)).0;
        Line::new(format!("{name} > "), crate::Style::BOLD)
    }

    fn history_refused(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.was_history_refused, true) {
            let file = self.history.file().display();
            let text = format!(
                "the history in {file} cannot be used: {error}; lines are kept until you leave"
            );
            self.view.notice(&text, crate::Style::YELLOW);
        }
    }
}

/// Submits lines in their order.
pub(crate) fn submitting(host: Arc<dyn ChatHost>) -> mpsc::Sender<ChatHostRequest> {
    let (sender, mut submissions) = mpsc::channel(SUBMISSION_CAPACITY);
    drop(tokio::spawn(async move {
        while let Some(submission) = submissions.recv().await {
            match submission {
                ChatHostRequest::Line(line, text) => host.submit(line, text).await,
                ChatHostRequest::Withdraw => host.withdraw(),
            }
        }
    }));
    sender
}

async fn sleep_until(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn terminal_error(error: io::Error) -> Error {
    Error::unknown(format!("the terminal cannot be used: {error}"))
}

impl std::fmt::Debug for ChatOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup")
            .field("workspace", &self.workspace)
            .finish_non_exhaustive()
    }
}
