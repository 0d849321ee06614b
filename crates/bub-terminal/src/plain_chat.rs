//! A chat that reads and prints lines, for pipes, dumb terminals and screen readers.

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

/// Maximum length of an input line.
const MAX_LINE_BYTES: u64 = 16 * 1024 * 1024;

/// Options of a line-based chat.
pub struct PlainChatOptions {
    /// The program that runs the chat.
    pub host: Arc<dyn ChatHost>,
    /// The events to print.
    pub chat_events: mpsc::Receiver<ChatEvent>,
    /// The number of replies to earlier chats that a pipe prints before it reads its input.
    pub recovered_replies: usize,
    /// Ends the input of a pipe: no further line is submitted.
    pub input_end: CancellationToken,
    /// Ends the chat without cancelling the running turn.
    pub stop: CancellationToken,
    /// Removes secrets from all output.
    pub redactor: Redactor,
}

/// Processes the lines of stdin in order. Answers go to stdout, everything else to stderr. Lines that an earlier chat
/// left unanswered come first.
///
/// # Errors
///
/// Fails if stdin cannot be read or stdout cannot be written. A closed stdout is not an error.
pub async fn run_pipe_chat(options: PlainChatOptions, is_terminal: bool) -> Result<ChatExit> {
    let mut pipe = Pipe {
        out: StdoutWriter::new(options.redactor.clone(), is_terminal),
        open: Vec::new(),
        expected_replies: u32::try_from(options.recovered_replies).unwrap_or(u32::MAX),
        options,
        replies: 0,
    };
    pipe.handle_queued_events()?;
    if !pipe.wait_until_settled().await? {
        return Ok(ChatExit::Stopped);
    }
    let mut lines = spawn_line_reader(false);
    let mut number = 0;
    loop {
        let line = tokio::select! {
            biased;
            () = pipe.options.input_end.cancelled() => return Ok(ChatExit::Stopped),
            line = lines.recv() => line,
        };
        let Some(StdinLine::Line(text)) = line.transpose().map_err(input_error)? else {
            return Ok(ChatExit::Quit);
        };
        match text.trim() {
            "" => {}
            ",quit" | ",exit" => return Ok(ChatExit::Quit),
            _ => {
                number += 1;
                if !pipe.submit_and_print(number, text).await? {
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
    /// Lines without an outcome.
    open: Vec<u64>,
    expected_replies: u32,
    replies: u32,
}

impl Pipe {
    /// Submits a line and prints the replies; `false` if the program is stopped in the meantime.
    async fn submit_and_print(&mut self, number: u64, text: String) -> Result<bool> {
        self.open.push(number);
        let host = Arc::clone(&self.options.host);
        let submitting = async {
            host.submit_line(number, text).await;
            std::future::pending().await
        };
        tokio::select! {
            biased;
            is_settled = self.wait_until_settled() => is_settled,
            never = submitting => never,
        }
    }

    /// Prints events until all lines are settled and their replies are printed; `false` if the program is stopped.
    async fn wait_until_settled(&mut self) -> Result<bool> {
        while !self.open.is_empty() || self.replies < self.expected_replies {
            let event = tokio::select! {
                biased;
                event = self.options.chat_events.recv() => event,
                () = self.options.stop.cancelled() => return Ok(false),
            };
            let Some(event) = event else {
                return Ok(false);
            };
            self.handle_event(event)?;
        }
        (self.replies, self.expected_replies) = (0, 0);
        Ok(true)
    }

    /// Handles the events that have arrived.
    fn handle_queued_events(&mut self) -> Result<()> {
        while let Ok(event) = self.options.chat_events.try_recv() {
            self.handle_event(event)?;
        }
        Ok(())
    }

    fn handle_event(&mut self, event: ChatEvent) -> Result<()> {
        self.replies += u32::from(matches!(event, ChatEvent::Message { .. }));
        match event {
            ChatEvent::LineRecovered { line, content } => {
                self.open.push(line);
                let content = crate::sanitize::sanitize_line(&content);
                self.print_notice(&format!(
                    "continuing a line from an earlier chat: {content}"
                ));
            }
            ChatEvent::Stream(StreamEvent::Text(delta)) => self.out.write_text(&delta)?,
            ChatEvent::Stream(StreamEvent::Final(end)) => {
                for failure in turn_view::failure_lines(&end) {
                    self.print_notice(&format!("tool {failure}"));
                }
            }
            ChatEvent::Stream(StreamEvent::Error(error)) => self.print_error(error.message()),
            ChatEvent::TurnStarted { .. } | ChatEvent::TurnEnded => self.out.end_line()?,
            ChatEvent::Message {
                content,
                kind: MessageKind::Error,
                ..
            } => {
                self.out.end_line()?;
                self.print_error(&content);
            }
            ChatEvent::Message {
                content,
                is_streamed: false,
                ..
            } => {
                self.out.write_text(&content)?;
                self.out.end_line()?;
            }
            ChatEvent::Notice(text) => self.print_notice(&text),
            ChatEvent::LineSettled {
                line,
                outcome,
                replies,
            } if self.open.contains(&line) => {
                self.out.end_line()?;
                if let LineOutcome::NotAnswered(reason) = outcome {
                    self.print_error(&format!("the message was not answered: {reason}"));
                }
                self.open.retain(|open| *open != line);
                self.expected_replies += replies;
            }
            _ => {}
        }
        Ok(())
    }

    fn print_error(&self, text: &str) {
        self.print_notice(&format!("error: {text}"));
    }

    fn print_notice(&self, text: &str) {
        let text = self.options.redactor.redact(text);
        // Ignore errors: stderr is closed and there is nowhere to report them.
        let _ = writeln!(io::stderr(), "{}", sanitize(text.trim_end()));
    }
}

/// Writes redacted answers to stdout. A closed pipe is not an error.
struct StdoutWriter {
    redactor: Redactor,
    out: Option<RedactingWriter<io::Stdout>>,
    /// Whitespace before the first word. It is dropped if no word follows.
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

    fn write_text(&mut self, text: &str) -> Result<()> {
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
        ignore_broken_pipe(out.write_all(text.as_bytes()))
    }

    /// Ends the last line.
    fn end_line(&mut self) -> Result<()> {
        self.blank.clear();
        let Some(mut out) = self.out.take() else {
            return Ok(());
        };
        if std::mem::take(&mut self.is_open) {
            ignore_broken_pipe(out.write_all(b"\n"))?;
        }
        drop(out);
        ignore_broken_pipe(io::stdout().flush())
    }
}

fn ignore_broken_pipe(outcome: io::Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::unknown(format!("cannot write to stdout: {error}")))
        }
        _ => Ok(()),
    }
}

/// Runs a line-based chat at a terminal, for dumb terminals and screen readers. Printed text never changes, and words
/// replace symbols.
///
/// # Errors
///
/// Fails if stdin cannot be read, stdout cannot be written, or signals cannot be received.
pub async fn run_plain_chat(
    mut options: PlainChatOptions,
    history: History,
    welcome: Vec<String>,
    prompt: &str,
) -> Result<ChatExit> {
    let mut typed = spawn_line_reader(true);
    let mut interrupts = signal(SignalKind::interrupt()).map_err(interrupt_error)?;
    let mut plain_chat = PlainChat {
        view: TurnView::new(
            tty::size().columns,
            ColorMode::None,
            options.redactor.clone(),
        ),
        submitted: chat::spawn_submitter(Arc::clone(&options.host)),
        host: Arc::clone(&options.host),
        history,
        prompt: crate::sanitize::sanitize_line(prompt) + " ",
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
    plain_chat.print(true)?;
    loop {
        tokio::select! {
            () = options.stop.cancelled() => {
                while let Ok(event) = options.chat_events.try_recv() {
                    plain_chat.handle_event(event)?;
                }
                return Ok(ChatExit::Stopped);
            }
            line = typed.recv() => {
                let leaves = match line.transpose().map_err(input_error)? {
                    Some(StdinLine::Line(text)) => plain_chat.handle_line(text)?,
                    Some(StdinLine::End) => plain_chat.handle_end_of_input()?,
                    None => true,
                };
                if leaves {
                    return plain_chat.leave(options.chat_events).await;
                }
            }
            _ = interrupts.recv() => {
                if plain_chat.handle_interrupt().await? {
                    return plain_chat.leave(options.chat_events).await;
                }
            }
            Some(chat_event) = options.chat_events.recv() => plain_chat.handle_event(chat_event)?,
        }
        if plain_chat.is_leaving && plain_chat.open.is_empty() && plain_chat.running.is_none() {
            return plain_chat.leave(options.chat_events).await;
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
    /// The line whose turn is running; 0 for a line of an earlier chat.
    running: Option<u64>,
    /// Whether the running line or a queued one is a command. Text does not steer then.
    has_command: bool,
    questions: VecDeque<UserQuestion>,
    is_leaving: bool,
    interrupted: Option<Instant>,
    /// Whether the running turn is cancelled and this is not reported yet.
    is_cancelled: bool,
}

impl PlainChat {
    /// Prints finished lines and, with `with_prompt`, the prompt.
    fn print(&mut self, with_prompt: bool) -> Result<()> {
        let mut text = String::new();
        for line in self.view.take_lines() {
            text.push_str(&Line::text(&line));
            text.push('\n');
        }
        let mut out = io::stdout();
        ignore_broken_pipe(out.write_all(text.as_bytes()).and_then(|()| out.flush()))?;
        match (with_prompt, self.questions.front()) {
            (false, _) => Ok(()),
            (true, None) => print_to_terminal(&self.prompt),
            (true, Some(UserQuestion::Call(..))) => print_to_terminal("allow? [y/N] "),
            (true, Some(UserQuestion::Line(..))) => print_to_terminal("answer: "),
        }
    }

    /// Handles a typed line. Returns `true` if it ends the chat.
    fn handle_line(&mut self, text: String) -> Result<bool> {
        (self.interrupted, self.is_leaving) = (None, false);
        if matches!(text.trim(), ",quit" | ",exit") {
            return Ok(true);
        }
        if !self.questions.is_empty() {
            self.answer_question(&text)?;
            return Ok(false);
        }
        if !text.trim().is_empty() {
            self.add_to_history(&text);
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
                .show_error("not sent: too many lines are pending; your line is in the history");
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
            self.view.show_notice(mark, crate::Style::NONE);
            self.print(false)?;
        }
        Ok(false)
    }

    fn answer_question(&mut self, text: &str) -> Result<()> {
        let answer = match text.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Some(ApprovalAnswer::Approved),
            "" | "n" | "no" => Some(ApprovalAnswer::Denied(None)),
            _ => None,
        };
        match (self.questions.pop_front(), answer) {
            (Some(question @ UserQuestion::Call(..)), None) => {
                self.questions.push_front(question);
                self.add_to_history(text);
                self.view.show_notice(
                    "answer y or n first; your line was not sent but is in the history",
                    crate::Style::NONE,
                );
            }
            // Ignore send errors: the question may have been withdrawn.
            (Some(UserQuestion::Call(_, answer_sender)), Some(answer)) => {
                let notice = if answer == ApprovalAnswer::Approved {
                    "allowed"
                } else {
                    "denied"
                };
                let _ = answer_sender.send(answer);
                self.view.show_notice(notice, crate::Style::NONE);
                self.show_question()?;
            }
            (Some(UserQuestion::Line(_, _, answer_sender)), _) => {
                // Ignore errors: the plugin may have exited.
                let _ = answer_sender.try_send(text.trim().to_owned());
                self.show_question()?;
            }
            (None, _) => {}
        }
        self.print(!self.questions.is_empty())
    }

    /// Handles Ctrl-D: leaves after the running turn and drops its questions. Pressed twice, it leaves immediately.
    fn handle_end_of_input(&mut self) -> Result<bool> {
        let is_busy = !self.open.is_empty() || self.running.is_some();
        if !is_busy || std::mem::replace(&mut self.is_leaving, true) {
            return Ok(true);
        }
        self.questions.clear();
        self.view.show_notice(
            "\nleaving after this turn; press Ctrl-D again to leave now",
            crate::Style::NONE,
        );
        self.print(false)?;
        Ok(false)
    }

    /// Adds a line to the history.
    fn add_to_history(&mut self, text: &str) {
        if let Err(error) = self.history.add(text.trim_end()) {
            tracing::debug!(%error, "history.write_failed");
        }
    }

    /// Handles Ctrl-C: cancels the turn. Pressed twice, it returns `true` to leave.
    async fn handle_interrupt(&mut self) -> Result<bool> {
        if self
            .interrupted
            .replace(Instant::now())
            .is_some_and(|at| at.elapsed() < DOUBLE_INTERRUPT_WINDOW)
        {
            return Ok(true);
        }
        if self.running.is_some() || !self.open.is_empty() {
            self.is_cancelled = self.running.is_some();
            // Drop plugin questions, so that text typed after Ctrl-C does not answer them.
            self.drop_questions(|question| matches!(question, UserQuestion::Line(..)))?;
            self.host.cancel_turn().await;
        } else {
            self.view.show_notice(
                "\npress Ctrl-C again or type ,quit to leave",
                crate::Style::NONE,
            );
            self.print(self.open.is_empty())?;
        }
        Ok(false)
    }

    fn handle_event(&mut self, chat_event: ChatEvent) -> Result<()> {
        let mut should_prompt = false;
        match chat_event {
            ChatEvent::TurnStarted { line, content } => {
                let is_command = content.trim_start().starts_with(',');
                self.view.begin_turn(is_command.then_some(content.as_str()));
                self.has_command = is_command || (self.has_command && self.open.len() > 1);
                self.running = Some(line.unwrap_or(0));
            }
            ChatEvent::LineRecovered { line, content } => {
                self.open.push(line);
                let text = format!(
                    "(queued, from an earlier chat) {}",
                    crate::sanitize::sanitize_line(&content)
                );
                self.view.show_notice(&text, crate::Style::NONE);
            }
            ChatEvent::Stream(event) => self.view.handle_event(&event),
            ChatEvent::TurnEnded => {
                self.view.end_turn(std::mem::take(&mut self.is_cancelled));
                should_prompt =
                    self.running.take_if(|line| *line == 0).is_some() && self.open.is_empty();
            }
            ChatEvent::LineSettled { line, outcome, .. } => {
                self.open.retain(|open| *open != line);
                let was_running = self.running.take_if(|running| *running == line).is_some();
                self.view.end_turn(false);
                let is_shown = !(was_running && self.interrupted.is_some());
                if let LineOutcome::NotAnswered(reason) = outcome
                    && is_shown
                {
                    self.view
                        .show_notice(&format!("not answered: {reason}"), crate::Style::NONE);
                }
                should_prompt = self.open.is_empty() && self.running.is_none();
            }
            ChatEvent::Message {
                content,
                kind: MessageKind::Error,
                ..
            } => self.view.show_error(&content),
            ChatEvent::Message {
                content,
                kind,
                is_streamed: false,
            } => {
                self.view
                    .show_message(&content, kind == MessageKind::Command);
            }
            ChatEvent::Question(UserQuestion::Line(..)) if self.is_cancelled => {}
            ChatEvent::Question(question) => {
                self.questions.push_back(question);
                should_prompt = self.questions.len() == 1;
                if should_prompt {
                    self.show_question()?;
                }
            }
            ChatEvent::QuestionWithdrawn(id) => {
                should_prompt = self.drop_questions(|question| question.id() == id)?
                    && !self.questions.is_empty();
            }
            ChatEvent::Message { .. }
            | ChatEvent::LineAccepted(_)
            | ChatEvent::Status(_)
            | ChatEvent::Sessions(_) => {}
            ChatEvent::Notice(text) => self.view.show_notice(&text, crate::Style::NONE),
        }
        self.print(should_prompt)
    }

    /// Prints the first question.
    fn show_question(&mut self) -> Result<()> {
        let Some(text) = self.questions.front().map(UserQuestion::text) else {
            return Ok(());
        };
        self.print(false)?;
        self.view.show_notice(&text, crate::Style::NONE);
        self.view
            .take_lines()
            .iter()
            .try_for_each(|line| print_to_terminal(&(line.text() + "\n")))
    }

    /// Drops questions that no longer need an answer. Returns `true` if the first question was dropped.
    fn drop_questions(&mut self, is_over: impl Fn(&UserQuestion) -> bool) -> Result<bool> {
        let was_first = self.questions.front().is_some_and(&is_over);
        self.questions.retain(|question| !is_over(question));
        if was_first {
            self.show_question()?;
        }
        Ok(was_first)
    }

    async fn leave(mut self, chat_events: mpsc::Receiver<ChatEvent>) -> Result<ChatExit> {
        // Close the queue so that turns stop waiting for space in it and can end.
        drop(chat_events);
        // Turns that do not end in time are interrupted when the program exits.
        let _ = tokio::time::timeout(QUIT_TIMEOUT, self.host.cancel_all()).await;
        self.view.end_turn(self.running.is_some());
        self.view.show_notice("Bye.", crate::Style::NONE);
        self.print(false)?;
        Ok(ChatExit::Quit)
    }
}

/// Prints text that only the user at the terminal should see: to stdout if that is a terminal, otherwise to stderr.
fn print_to_terminal(text: &str) -> Result<()> {
    if io::stdout().is_terminal() {
        let mut out = io::stdout();
        return ignore_broken_pipe(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
    }
    // Ignore errors: stderr is closed and there is nowhere to report them.
    let _ = io::stderr().write_all(text.as_bytes());
    Ok(())
}

/// One read from stdin.
enum StdinLine {
    Line(String),
    /// End of input. At a terminal, reading can continue after it, because Ctrl-D is just a key.
    End,
}

/// Starts a thread that reads the lines of stdin. Invalid UTF-8 is replaced, with a warning.
fn spawn_line_reader(is_terminal: bool) -> mpsc::Receiver<io::Result<StdinLine>> {
    let (sender, lines) = mpsc::channel(1);
    let read_lines = move || {
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
                    "a line has more than {MAX_LINE_BYTES} bytes; split it"
                ))),
                Ok(_) => Ok(StdinLine::Line(decode_line(&line))),
                Err(error) => Err(error),
            };
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    };
    // Ignore errors: without the thread, the channel closes and the chat ends.
    let _ = std::thread::Builder::new()
        .name("typed".to_owned())
        .spawn(read_lines);
    lines
}

fn decode_line(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    if matches!(text, std::borrow::Cow::Owned(_)) {
        // Ignore errors: stderr is closed and there is nowhere to report them.
        let _ = writeln!(
            io::stderr(),
            "input line is not valid UTF-8; invalid bytes were replaced"
        );
    }
    text.trim_end_matches(['\n', '\r']).to_owned()
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn input_error(error: io::Error) -> Error {
    Error::invalid_input(format!(
        "cannot read stdin: {error}; check the input and start the chat again"
    ))
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn interrupt_error(error: io::Error) -> Error {
    Error::unknown(format!(
        "cannot handle Ctrl-C: {error}; start the chat again"
    ))
}

impl std::fmt::Debug for PlainChatOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlainChatOptions").finish_non_exhaustive()
    }
}
