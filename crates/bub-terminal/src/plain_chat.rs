//! A chat without a screen: lines in, lines out. For pipes, dumb terminals and screen readers.

use std::{
    collections::VecDeque,
    io::{self, BufRead as _, BufReader, IsTerminal as _, Read as _, Write},
    sync::Arc,
};

use bub_kernel::{ApprovalAnswer, CancellationToken, Error, MessageKind, Result, StreamEvent};
use bub_settings::{RedactingWriter, Redactor};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::Instant,
};

use crate::{
    ColorMode, Line,
    channel::{ChatEvent, LineOutcome, UserQuestion},
    chat::{self, ChatExit, ChatHostRequest, DOUBLE_INTERRUPT_WINDOW, QUIT_TIMEOUT},
    history::History,
    host::ChatHost,
    sanitize::sanitize,
    tty,
    turn_view::{self, TurnView},
};

/// No message is this long.
const MAX_LINE_BYTES: u64 = 16 * 1024 * 1024;

/// What a chat without a screen is made of.
pub struct PlainChatOptions {
    /// The program around it.
    pub host: Arc<dyn ChatHost>,
    /// What it is told.
    pub chat_events: mpsc::Receiver<ChatEvent>,
    /// Ends it, without ending what runs.
    pub stop: CancellationToken,
    /// What must not be shown.
    pub redactor: Redactor,
}

/// Answers the lines of stdin in their order: answers go to stdout, everything else to stderr. Lines that an earlier chat
/// left unanswered come first.
pub async fn pipe(options: PlainChatOptions, is_terminal: bool) -> Result<ChatExit> {
    let mut pipe = Pipe {
        out: StdoutWriter::new(options.redactor.clone(), is_terminal),
        options,
        open: Vec::new(),
        expected_replies: 0,
        replies: 0,
    };
    pipe.handle_queued()?;
    if !pipe.until_settled().await? {
        return Ok(ChatExit::Stopped);
    }
    let mut lines = lines(false);
    let mut number = 0;
    loop {
        let line = tokio::select! {
            line = lines.recv() => line,
            () = pipe.options.stop.cancelled() => return Ok(ChatExit::Stopped),
        };
        let Some(StdinLine::Line(text)) = line.transpose().map_err(input_error)? else {
            return Ok(ChatExit::Quit);
        };
        match text.trim() {
            "" => {}
            ",quit" | ",exit" => return Ok(ChatExit::Quit),
            _ => {
                number += 1;
                if !pipe.answer(number, text).await? {
                    return Ok(ChatExit::Stopped);
                }
            }
        }
    }
}

/// A chat through a pipe.
struct Pipe {
    options: PlainChatOptions,
    out: StdoutWriter,
    /// Lines that are not settled.
    open: Vec<u64>,
    expected_replies: u32,
    replies: u32,
}

impl Pipe {
    /// Submits a line and prints the replies; `false` if the program is stopped in the meantime.
    async fn answer(&mut self, number: u64, text: String) -> Result<bool> {
        self.open.push(number);
        let host = Arc::clone(&self.options.host);
        let submitting = async {
            host.submit(number, text).await;
            std::future::pending().await
        };
        tokio::select! {
            biased;
            is_settled = self.until_settled() => is_settled,
            never = submitting => never,
        }
    }

    /// Prints events until all lines are settled and their replies are printed; `false` if the program is stopped.
    async fn until_settled(&mut self) -> Result<bool> {
        while !self.open.is_empty() || self.replies < self.expected_replies {
            let event = tokio::select! {
                biased;
                event = self.options.chat_events.recv() => event,
                () = self.options.stop.cancelled() => return Ok(false),
            };
            let Some(event) = event else {
                return Ok(false);
            };
            self.handle(event)?;
        }
        (self.replies, self.expected_replies) = (0, 0);
        Ok(true)
    }

    /// Handles the events that have arrived.
    fn handle_queued(&mut self) -> Result<()> {
        while let Ok(event) = self.options.chat_events.try_recv() {
            self.handle(event)?;
        }
        Ok(())
    }

    fn handle(&mut self, event: ChatEvent) -> Result<()> {
        self.replies += u32::from(matches!(event, ChatEvent::Said { .. }));
        match event {
            ChatEvent::Found { line, content } => {
                self.open.push(line);
                let content = crate::sanitize::line(&content);
                self.remark(&format!(
                    "continuing a line from an earlier chat: {content}"
                ));
            }
            ChatEvent::Event(StreamEvent::Text(delta)) => self.out.text(&delta)?,
            ChatEvent::Event(StreamEvent::Final(end)) => {
                for failure in turn_view::failures(&end) {
                    self.remark(&format!("tool {failure}"));
                }
            }
            ChatEvent::Event(StreamEvent::Error(error)) => self.complain(error.message()),
            ChatEvent::Began { .. } | ChatEvent::Ended => self.out.end()?,
            ChatEvent::Said {
                content,
                kind: MessageKind::Error,
                ..
            } => {
                self.out.end()?;
                self.complain(&content);
            }
            ChatEvent::Said {
                content,
                is_known: false,
                ..
            } => {
                self.out.text(&content)?;
                self.out.end()?;
            }
            ChatEvent::Remark(text) => self.remark(&text),
            ChatEvent::Settled {
                line,
                outcome,
                replies,
            } if self.open.contains(&line) => {
                self.out.end()?;
                if let LineOutcome::NotAnswered(reason) = outcome {
                    self.complain(&format!("the message was not answered: {reason}"));
                }
                self.open.retain(|open| *open != line);
                self.expected_replies += replies;
            }
            _ => {}
        }
        Ok(())
    }

    fn complain(&self, text: &str) {
        self.remark(&format!("error: {text}"));
    }

    fn remark(&self, text: &str) {
        let text = self.options.redactor.redact(text);
        // Ignore errors: stderr is closed and there is nowhere to report them.
        let _ = writeln!(io::stderr(), "{}", sanitize(text.trim_end()));
    }
}

/// Text on its way to standard output, without secrets. A reader that has gone away is no failure.
struct StdoutWriter {
    redactor: Redactor,
    out: Option<RedactingWriter<io::Stdout>>,
    /// What came before the first word: an answer that is nothing else is none.
    blank: String,
    is_shown: bool,
    is_open: bool,
}

impl StdoutWriter {
    fn new(redactor: Redactor, is_shown: bool) -> Self {
        Self {
            redactor,
            out: None,
            blank: String::new(),
            is_shown,
            is_open: false,
        }
    }

    fn text(&mut self, text: &str) -> Result<()> {
        if self.out.is_none() && text.trim().is_empty() {
            self.blank.push_str(text);
            return Ok(());
        }
        if text.is_empty() {
            return Ok(());
        }
        self.is_open = !text.ends_with('\n');
        let text = &(std::mem::take(&mut self.blank) + text);
        let out = self
            .out
            .get_or_insert_with(|| self.redactor.writer(io::stdout()));
        let text = if self.is_shown {
            sanitize(text)
        } else {
            text.into()
        };
        written(out.write_all(text.as_bytes()))
    }

    /// Ends the last line.
    fn end(&mut self) -> Result<()> {
        self.blank.clear();
        let Some(mut out) = self.out.take() else {
            return Ok(());
        };
        if std::mem::take(&mut self.is_open) {
            written(out.write_all(b"\n"))?;
        }
        drop(out);
        written(io::stdout().flush())
    }
}

fn written(outcome: io::Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Error::unknown(format!(
            "cannot write to standard output: {error}"
        ))),
        _ => Ok(()),
    }
}

/// A conversation in lines: nothing that was written changes, and signs are words.
pub async fn run_plain_chat(
    mut plain: PlainChatOptions,
    history: History,
    welcome: Vec<String>,
    prompt: &str,
) -> Result<ChatExit> {
    let mut typed = lines(true);
    let mut interrupts = signal(SignalKind::interrupt()).map_err(input_error)?;
    let mut talk = PlainChat {
        view: TurnView::new(tty::size().columns, ColorMode::None, plain.redactor.clone()),
        submitted: chat::submitting(Arc::clone(&plain.host)),
        host: Arc::clone(&plain.host),
        history,
        prompt: crate::sanitize::line(prompt) + " ",
        number: 0,
        open: Vec::new(),
        running: None,
        has_command: false,
        questions: VecDeque::new(),
        is_leaving: false,
        interrupted: None,
        is_cancelled: false,
    };
    for line in welcome {
        print_to_terminal(&format!("{}\n", sanitize(&line)))?;
    }
    talk.print(true)?;
    loop {
        tokio::select! {
            () = plain.stop.cancelled() => {
                while let Ok(event) = plain.chat_events.try_recv() {
                    talk.handle_event(event)?;
                }
                return Ok(ChatExit::Stopped);
            }
            line = typed.recv() => {
                let leaves = match line.transpose().map_err(input_error)? {
                    Some(StdinLine::Line(text)) => talk.typed(text)?,
                    Some(StdinLine::End) => talk.end()?,
                    None => true,
                };
                if leaves {
                    return talk.leave(plain.chat_events).await;
                }
            }
            _ = interrupts.recv() => {
                if talk.interrupt().await? {
                    return talk.leave(plain.chat_events).await;
                }
            }
            Some(chat_event) = plain.chat_events.recv() => talk.handle_event(chat_event)?,
        }
        if talk.is_leaving && talk.open.is_empty() && talk.running.is_none() {
            return talk.leave(plain.chat_events).await;
        }
    }
}

struct PlainChat {
    view: TurnView,
    host: Arc<dyn ChatHost>,
    submitted: mpsc::Sender<ChatHostRequest>,
    history: History,
    prompt: String,
    number: u64,
    open: Vec<u64>,
    /// The line whose turn runs; 0 when it is of an earlier chat.
    running: Option<u64>,
    /// Whether that, or a line that waits, is a command: text does not steer then.
    has_command: bool,
    questions: VecDeque<UserQuestion>,
    is_leaving: bool,
    interrupted: Option<Instant>,
    /// The turn that runs is cancelled, and nobody has said so.
    is_cancelled: bool,
}

impl PlainChat {
    /// Prints what is finished and, when it is somebody's turn to type, the prompt.
    fn print(&mut self, asks: bool) -> Result<()> {
        let mut text = String::new();
        for line in self.view.take_lines() {
            text.push_str(&Line::text(&line));
            text.push('\n');
        }
        let mut out = io::stdout();
        written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))?;
        match (asks, self.questions.front()) {
            (false, _) => Ok(()),
            (true, None) => print_to_terminal(&self.prompt),
            (true, Some(UserQuestion::Call(..))) => print_to_terminal("allow? [y/N] "),
            (true, Some(UserQuestion::Line(..))) => print_to_terminal("answer: "),
        }
    }

    /// Takes a line; `true` when it leaves.
    fn typed(&mut self, text: String) -> Result<bool> {
        (self.interrupted, self.is_leaving) = (None, false);
        if matches!(text.trim(), ",quit" | ",exit") {
            return Ok(true);
        }
        if !self.questions.is_empty() {
            self.answer(&text)?;
            return Ok(false);
        }
        if !text.trim().is_empty() {
            self.remember(&text);
        }
        match text.trim() {
            "" => {
                self.print(self.open.is_empty())?;
                return Ok(false);
            }
            ",thinking" => {
                self.view.toggle_thinking();
                self.print(self.open.is_empty())?;
                return Ok(false);
            }
            _ => {}
        }
        self.number += 1;
        let is_busy = self.running.is_some();
        self.has_command |= is_busy && text.trim_start().starts_with(',');
        let submission = ChatHostRequest::Line(self.number, text);
        if self.submitted.try_send(submission).is_err() {
            self.view
                .error("not sent: too many lines are not accepted yet; the history has it");
            self.print(self.open.is_empty())?;
            return Ok(false);
        }
        self.open.push(self.number);
        if is_busy {
            let mark = if self.has_command {
                "(queued)"
            } else {
                "(steering)"
            };
            self.view.notice(mark, crate::Style::NONE);
            self.print(false)?;
        }
        Ok(false)
    }

    fn answer(&mut self, text: &str) -> Result<()> {
        let answer = match text.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Some(ApprovalAnswer::Approved),
            "" | "n" | "no" => Some(ApprovalAnswer::Denied(None)),
            _ => None,
        };
        match (self.questions.pop_front(), answer) {
            (Some(question @ UserQuestion::Call(..)), None) => {
                self.questions.push_front(question);
                self.remember(text);
                self.view.notice(
                    "answer y or n first; this was not sent, the history has it",
                    crate::Style::NONE,
                );
            }
            // Whoever asked may have gone.
            (Some(UserQuestion::Call(_, waiting)), Some(answer)) => {
                let said = if answer == ApprovalAnswer::Approved {
                    "allowed"
                } else {
                    "denied"
                };
                let _ = waiting.send(answer);
                self.view.notice(said, crate::Style::NONE);
                self.show_question()?;
            }
            (Some(UserQuestion::Line(_, _, waiting)), _) => {
                // The plugin may be gone.
                let _ = waiting.try_send(text.trim().to_owned());
                self.show_question()?;
            }
            (None, _) => {}
        }
        self.print(!self.questions.is_empty())
    }

    /// Ctrl-D: leaves, after what runs, which gets no answers any more; twice: at once.
    fn end(&mut self) -> Result<bool> {
        let is_busy = !self.open.is_empty() || self.running.is_some();
        if !is_busy || std::mem::replace(&mut self.is_leaving, true) {
            return Ok(true);
        }
        self.questions.clear();
        self.view.notice(
            "\nleaving when this is done; Ctrl-D again leaves now",
            crate::Style::NONE,
        );
        self.print(false)?;
        Ok(false)
    }

    /// Later chats can have it back.
    fn remember(&mut self, text: &str) {
        if let Err(error) = self.history.add(text.trim_end()) {
            tracing::debug!(%error, "history.write_failed");
        }
    }

    /// Ctrl-C: ends the turn; twice: leaves.
    async fn interrupt(&mut self) -> Result<bool> {
        if self
            .interrupted
            .replace(Instant::now())
            .is_some_and(|at| at.elapsed() < DOUBLE_INTERRUPT_WINDOW)
        {
            return Ok(true);
        }
        if self.running.is_some() || !self.open.is_empty() {
            self.is_cancelled = self.running.is_some();
            // What is typed from now on is for somebody else.
            self.drop_questions(|question| matches!(question, UserQuestion::Line(..)))?;
            self.host.cancel().await;
        } else {
            self.view
                .notice("\nCtrl-C again leaves; so does ,quit", crate::Style::NONE);
            self.print(self.open.is_empty())?;
        }
        Ok(false)
    }

    fn handle_event(&mut self, chat_event: ChatEvent) -> Result<()> {
        let mut is_free = false;
        match chat_event {
            ChatEvent::Began { line, content } => {
                let is_command = content.trim_start().starts_with(',');
                self.view.begin(is_command.then_some(content.as_str()));
                self.has_command = is_command || (self.has_command && self.open.len() > 1);
                self.running = Some(line.unwrap_or(0));
            }
            ChatEvent::Found { line, content } => {
                self.open.push(line);
                let text = format!(
                    "(queued, of an earlier chat) {}",
                    crate::sanitize::line(&content)
                );
                self.view.notice(&text, crate::Style::NONE);
            }
            ChatEvent::Event(event) => self.view.event(&event),
            ChatEvent::Ended => {
                self.view.end(std::mem::take(&mut self.is_cancelled));
                is_free = self.running.take_if(|line| *line == 0).is_some() && self.open.is_empty();
            }
            ChatEvent::Settled { line, outcome, .. } => {
                self.open.retain(|open| *open != line);
                let was_running = self.running.take_if(|running| *running == line).is_some();
                self.view.end(false);
                let is_shown = !(was_running && self.interrupted.is_some());
                if let LineOutcome::NotAnswered(reason) = outcome
                    && is_shown
                {
                    self.view
                        .notice(&format!("not answered: {reason}"), crate::Style::NONE);
                }
                is_free = self.open.is_empty() && self.running.is_none();
            }
            ChatEvent::Said {
                content,
                kind: MessageKind::Error,
                ..
            } => self.view.error(&content),
            ChatEvent::Said {
                content,
                kind,
                is_known: false,
            } => {
                self.view.message(&content, kind == MessageKind::Command);
            }
            ChatEvent::Asked(UserQuestion::Line(..)) if self.is_cancelled => {}
            ChatEvent::Asked(question) => {
                self.questions.push_back(question);
                is_free = self.questions.len() == 1;
                if is_free {
                    self.show_question()?;
                }
            }
            ChatEvent::Withdrawn(id) => {
                is_free = self.drop_questions(|question| question.id() == id)?
                    && !self.questions.is_empty();
            }
            ChatEvent::Said { .. }
            | ChatEvent::Taken(_)
            | ChatEvent::Status(_)
            | ChatEvent::Sessions(_) => {}
            ChatEvent::Remark(text) => self.view.notice(&text, crate::Style::NONE),
        }
        self.print(is_free)
    }

    /// Says the question whose turn it is.
    fn show_question(&mut self) -> Result<()> {
        let Some(text) = self.questions.front().map(UserQuestion::text) else {
            return Ok(());
        };
        self.print(false)?;
        self.view.notice(&text, crate::Style::NONE);
        self.view
            .take_lines()
            .iter()
            .try_for_each(|line| print_to_terminal(&(line.text() + "\n")))
    }

    /// Nobody waits for these answers any more; `true` when another question has its turn, or none.
    fn drop_questions(&mut self, is_over: impl Fn(&UserQuestion) -> bool) -> Result<bool> {
        let was_first = self.questions.front().is_some_and(&is_over);
        self.questions.retain(|question| !is_over(question));
        if was_first {
            self.show_question()?;
        }
        Ok(was_first)
    }

    async fn leave(mut self, chat_events: mpsc::Receiver<ChatEvent>) -> Result<ChatExit> {
        // Nobody has to wait for room to tell: what runs can end.
        drop(chat_events);
        // What does not end by then is interrupted when the program ends.
        let _ = tokio::time::timeout(QUIT_TIMEOUT, self.host.quit()).await;
        self.view.end(self.running.is_some());
        self.view.notice("Bye.", crate::Style::NONE);
        self.print(false)?;
        Ok(ChatExit::Quit)
    }
}

/// Writes what is for the person at the terminal and nobody else.
fn print_to_terminal(text: &str) -> Result<()> {
    if io::stdout().is_terminal() {
        let mut out = io::stdout();
        return written(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
    }
    // Nothing sensible is left to do when standard error is gone.
    let _ = io::stderr().write_all(text.as_bytes());
    Ok(())
}

/// What standard input says.
enum StdinLine {
    Line(String),
    /// Its end, which at a terminal is a key like any other.
    End,
}

/// The lines of standard input. What is not UTF-8 is replaced, with a word about it.
fn lines(is_terminal: bool) -> mpsc::Receiver<io::Result<StdinLine>> {
    let (sender, lines) = mpsc::channel(1);
    let reading = move || {
        let mut input = BufReader::new(io::stdin());
        loop {
            let mut line = Vec::new();
            let read = input
                .by_ref()
                .take(MAX_LINE_BYTES + 1)
                .read_until(b'\n', &mut line);
            let line = match read {
                Ok(0) if is_terminal => Ok(StdinLine::End),
                Ok(0) => return,
                Ok(_) if line.len() as u64 > MAX_LINE_BYTES => Err(io::Error::other(format!(
                    "a line is longer than {MAX_LINE_BYTES} bytes"
                ))),
                Ok(_) => Ok(StdinLine::Line(decoded(&line))),
                Err(error) => Err(error),
            };
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    };
    // Without a thread there is nothing to read; the chat then ends at once.
    let _ = std::thread::Builder::new()
        .name("typed".to_owned())
        .spawn(reading);
    lines
}

fn decoded(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    if matches!(text, std::borrow::Cow::Owned(_)) {
        // Nothing sensible is left to do when standard error is gone.
        let _ = writeln!(
            io::stderr(),
            "a line of the input is not valid UTF-8; what is not was replaced"
        );
    }
    text.trim_end_matches(['\n', '\r']).to_owned()
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn input_error(error: io::Error) -> Error {
    Error::invalid_input(format!("standard input cannot be read: {error}"))
}

impl std::fmt::Debug for PlainChatOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plain").finish_non_exhaustive()
    }
}
