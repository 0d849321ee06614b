//! A chat that reads and prints lines, for pipes, dumb terminals and screen readers.
//!
//! It shares `ChatState` and `TurnView` with the chat on a screen. Its own part is what differs: printed lines never
//! change, so there is no live area, no editor and no queue to show.

mod pipe;
mod stdin;

use std::{
    io::{self, IsTerminal as _, Write},
    sync::Arc,
};

use bub_kernel::{CancellationToken, Error, Result, StreamEvent, command_line, command_prefix};
use bub_settings::Redactor;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

pub use self::pipe::run_pipe_chat;
use self::stdin::input_error;
use crate::{
    ColorMode, Line, Style,
    channel::ChatEvent,
    chat::{ChatCommand, ChatExit, ChatState, LastExchange, leave_hint, resolve_slash},
    editor::{CompletionItem, CompletionItems},
    history::History,
    host::ChatHost,
    sanitize::sanitize_line,
    stdout_writer::ignore_broken_pipe,
    tty,
    turn_view::TurnView,
};

/// Options of a line-based chat.
pub struct PlainChatOptions {
    /// The program that runs the chat.
    pub host: Arc<dyn ChatHost>,
    /// A line to submit at the start, before any input is read.
    pub first_line: Option<String>,
    /// The events to print.
    pub chat_events: mpsc::Receiver<ChatEvent>,
    /// Words that a chat on a screen completes. Every chat knows the commands by them.
    pub words: CompletionItems,
    /// Number of undelivered replies of earlier chats. A chat through a pipe prints them before it reads its input.
    pub recovered_replies: usize,
    /// Ends the input of a chat through a pipe: no further line is submitted.
    pub input_end: CancellationToken,
    /// Ends the chat without cancelling the running turn.
    pub stop: CancellationToken,
    /// Removes secrets from all output.
    pub redactor: Redactor,
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
    last_exchange: Option<LastExchange>,
    prompt: &str,
) -> Result<ChatExit> {
    let first_line = options.first_line.take();
    let mut typed = stdin::spawn_line_reader(true);
    let mut interrupts = signal(SignalKind::interrupt()).map_err(|error| {
        Error::unknown(format!(
            "cannot handle Ctrl-C: {error}; start the chat again"
        ))
    })?;
    let view = TurnView::new(tty::size().columns, ColorMode::None, options.redactor)
        .with_call_starts()
        .with_expand_hint(format!("{}output shows all", command_prefix()));
    let mut plain_chat = PlainChat {
        state: ChatState::new(view, history, options.host),
        prompt: sanitize_line(prompt) + " ",
        has_command: false,
        commands: options.words.commands,
        unknown_command: None,
    };
    plain_chat.state.view.show_welcome(&welcome);
    if let Some(last) = last_exchange {
        let earlier = format!("you (earlier): {}", last.message);
        plain_chat.state.view.show_notice(&earlier, Style::NONE);
        plain_chat.state.view.show_message(&last.answer, false);
    }
    for line in plain_chat.state.view.take_lines() {
        print_to_terminal(&(line.text() + "\n"))?;
    }
    plain_chat.print_finished_lines(first_line.is_none())?;
    if let Some(text) = first_line {
        plain_chat.print_notice(&text, false)?;
        plain_chat.handle_line(&text)?;
    }
    loop {
        let should_leave = tokio::select! {
            () = options.stop.cancelled() => {
                while let Ok(event) = options.chat_events.try_recv() {
                    plain_chat.handle_event(event)?;
                }
                return Ok(ChatExit::Stopped);
            }
            line = typed.recv() => match line.transpose().map_err(input_error)? {
                Some(Some(text)) => plain_chat.handle_line(&text)?,
                // The terminal was closed: the user has not answered.
                Some(None) if tty::is_hung_up(io::stdin()) => return Ok(ChatExit::Stopped),
                Some(None) => plain_chat.handle_end_of_input()?,
                None => true,
            },
            _ = interrupts.recv() => plain_chat.handle_interrupt().await?,
            Some(chat_event) = options.chat_events.recv() => {
                plain_chat.handle_event(chat_event)?;
                false
            }
        };
        if should_leave || plain_chat.state.should_leave() {
            plain_chat.state.quit(options.chat_events).await;
            plain_chat.print_finished_lines(false)?;
            return Ok(ChatExit::Quit);
        }
    }
}

struct PlainChat {
    state: ChatState,
    prompt: String,
    /// Whether the line of the running turn or a queued line is a command. New lines are then queued and do not steer.
    has_command: bool,
    commands: Vec<CompletionItem>,
    /// A line that starts with `/` and names no command. If the user types it again, it is sent as text.
    unknown_command: Option<String>,
}

impl PlainChat {
    /// Prints finished lines. With `with_prompt`, also asks for input: for a line, or for an answer to the first
    /// question.
    fn print_finished_lines(&mut self, with_prompt: bool) -> Result<()> {
        let lines = self.state.view.take_lines();
        let text: String = lines.iter().map(|line| line.text() + "\n").collect();
        let mut out = io::stdout();
        ignore_broken_pipe(out.write_all(text.as_bytes()).and_then(|()| out.flush()))?;
        if !with_prompt {
            return Ok(());
        }
        match self.state.questions.front() {
            Some(question) => print_to_terminal(&question.prompt()),
            None => print_to_terminal(&self.prompt),
        }
    }

    fn print_notice(&mut self, text: &str, with_prompt: bool) -> Result<()> {
        self.state.view.show_notice(text, Style::NONE);
        self.print_finished_lines(with_prompt)
    }

    /// Handles a typed line. Returns `true` if it ends the chat.
    fn handle_line(&mut self, text: &str) -> Result<bool> {
        (self.state.interrupted, self.state.is_leaving) = (None, false);
        if ChatCommand::parse(text) == Some(ChatCommand::Quit) {
            return Ok(true);
        }
        if !self.state.questions.is_empty() {
            self.answer_question(text)?;
            return Ok(false);
        }
        if !text.trim().is_empty() {
            self.add_to_history(text);
        }
        let is_confirmed = self.unknown_command.take().as_deref() == Some(text);
        let text = match resolve_slash(text, &self.commands) {
            Ok(resolved) => resolved,
            Err(_) if is_confirmed => text.to_owned(),
            Err(problem) => {
                self.unknown_command = Some(text.to_owned());
                let notice = format!("{problem} Type the line again to send it as text");
                self.print_notice(&notice, self.state.open.is_empty())?;
                return Ok(false);
            }
        };
        let text = text.as_str();
        let command = ChatCommand::parse(text);
        if let Some(command) = command {
            let should_leave = self.state.run_chat_command(command);
            self.print_finished_lines(self.state.open.is_empty())?;
            return Ok(should_leave);
        }
        match text.trim() {
            "" => self.print_finished_lines(self.state.open.is_empty())?,
            _ => self.send_line(text)?,
        }
        Ok(false)
    }

    fn send_line(&mut self, text: &str) -> Result<()> {
        let is_busy = self.state.running.is_some();
        self.has_command |= is_busy && command_line(text).is_some();
        let Some(line) = self.state.submit(text) else {
            self.state
                .view
                .show_error("not sent: too many lines are pending; your line is in the history");
            return self.print_finished_lines(self.state.open.is_empty());
        };
        self.state.open.push(line);
        match (is_busy, self.has_command) {
            (false, _) => Ok(()),
            (true, true) => self.print_notice("(queued)", false),
            (true, false) => self.print_notice("(steering)", false),
        }
    }

    fn answer_question(&mut self, text: &str) -> Result<()> {
        if !self.state.answer_question(text) {
            self.add_to_history(text);
            let notice = "answer the question first; your line was not sent but is in the history";
            return self.print_notice(notice, true);
        }
        self.show_question()?;
        self.print_finished_lines(!self.state.questions.is_empty())
    }

    /// Handles Ctrl-D: drops open questions and leaves after the running turn. Returns `true` to leave immediately, if
    /// nothing is running or Ctrl-D is pressed twice.
    fn handle_end_of_input(&mut self) -> Result<bool> {
        if !self.state.is_busy() || std::mem::replace(&mut self.state.is_leaving, true) {
            return Ok(true);
        }
        self.state.deny_questions();
        let notice = "\nleaving after this turn; press Ctrl-D again to leave now";
        self.print_notice(notice, false)?;
        Ok(false)
    }

    /// Adds a line to the history. A failure is only logged.
    fn add_to_history(&mut self, text: &str) {
        if let Err(error) = self.state.history.add(text.trim_end()) {
            tracing::debug!(%error, "history.write_failed");
        }
    }

    /// Handles Ctrl-C: cancels the turn. Pressed twice, it returns `true` to leave.
    async fn handle_interrupt(&mut self) -> Result<bool> {
        if self.state.interrupt() {
            return Ok(true);
        }
        if !self.state.is_busy() {
            self.print_notice(&format!("\n{}", leave_hint()), true)?;
        } else if self.state.cancel_turn().await {
            self.show_question()?;
        }
        Ok(false)
    }

    fn handle_event(&mut self, chat_event: ChatEvent) -> Result<()> {
        let mut should_prompt = false;
        match chat_event {
            ChatEvent::TurnStarted { line, content } => {
                let is_command = self.state.begin_turn(line, &content);
                self.has_command = is_command || (self.has_command && self.state.open.len() > 1);
            }
            ChatEvent::LineRecovered { line, content } => {
                self.state.open.push(line);
                let content = sanitize_line(&content);
                let text = format!("(queued, from an earlier chat) {content}");
                self.state.view.show_notice(&text, Style::NONE);
            }
            ChatEvent::ReplacedFiles(texts) => self.state.view.set_replaced_files(texts),
            ChatEvent::Stream(event) => self.state.view.handle_event(&event),
            ChatEvent::SetupGuide(text) => {
                self.state.view.handle_event(&StreamEvent::Text(text));
            }
            ChatEvent::CallsInterrupted(calls) => self.state.view.set_call_progress(calls),
            ChatEvent::TurnEnded => {
                should_prompt = self.state.end_stream() && self.state.open.is_empty();
            }
            ChatEvent::LineSettled { line, outcome, .. } => {
                let was_running = self.state.settle_line(line).is_some();
                self.state.view.end_turn(false);
                if !(was_running && self.state.interrupted.is_some()) {
                    self.state.show_outcome(line, &outcome);
                }
                should_prompt = !self.state.is_busy();
            }
            ChatEvent::Message {
                content,
                kind,
                is_streamed: false,
            } => self.state.show_message(&content, kind),
            ChatEvent::Question(question) => {
                should_prompt = self.state.add_question(question);
                if should_prompt {
                    self.show_question()?;
                }
            }
            ChatEvent::QuestionWithdrawn(id) => {
                if self.state.drop_questions(|question| question.id() == id) {
                    self.show_question()?;
                    should_prompt = !self.state.questions.is_empty();
                }
            }
            ChatEvent::Notice(text) => self.state.view.show_notice(&text, Style::NONE),
            ChatEvent::Message { .. }
            | ChatEvent::LineAccepted(_)
            | ChatEvent::ImageRejected { .. }
            | ChatEvent::Status(_)
            | ChatEvent::Sessions(_) => {}
        }
        self.print_finished_lines(should_prompt)
    }

    /// Prints the first question, if there is one.
    fn show_question(&mut self) -> Result<()> {
        self.print_finished_lines(false)?;
        self.state.show_question(tty::size().columns);
        let lines = self.state.view.take_lines();
        let mut lines = lines.iter().map(Line::text);
        lines.try_for_each(|line| print_to_terminal(&(line + "\n")))
    }
}

/// Prints text that only the user at the terminal should see: to stdout if that is a terminal, otherwise to stderr.
fn print_to_terminal(text: &str) -> Result<()> {
    if io::stdout().is_terminal() {
        let mut out = io::stdout();
        return ignore_broken_pipe(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
    }
    // Ignore errors: if stderr cannot be written, there is nowhere to report them.
    let _ = io::stderr().write_all(text.as_bytes());
    Ok(())
}
