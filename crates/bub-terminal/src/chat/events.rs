//! What turns do, as the chat shows it.

use bub_kernel::MessageKind;

use super::{ChatExit, ChatScreen, QueuedLine, RunningTurn};
use crate::{
    Line, Style,
    channel::{ChatEvent, FIRST_RECOVERED_LINE, LineOutcome, UserQuestion},
    sanitize::sanitize,
};
use tokio::time::Instant;

/// Said of a line that was typed in a chat that did not come to answer it.
const EARLIER_CHAT_SUFFIX: &str = " (of an earlier chat)";

impl ChatScreen {
    pub(super) fn handle_event(&mut self, chat_event: ChatEvent) {
        match chat_event {
            ChatEvent::Found { line, content } => {
                self.open.push(line);
                self.waiting.push(QueuedLine {
                    line,
                    text: content,
                    steers: false,
                    is_taken: true,
                });
            }
            ChatEvent::Taken(line) => {
                if let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.line == line)
                {
                    waiting.is_taken = true;
                }
            }
            ChatEvent::Began { line, content } => self.handle_turn_start(line, &content),
            ChatEvent::Event(event) => {
                use bub_kernel::StreamEvent as E;
                self.view.event(&event);
                if matches!(event, E::Final(_) | E::Error(_)) {
                    // Here the turn takes them.
                    self.show_steering();
                }
            }
            ChatEvent::Ended => {
                // It may be told of twice.
                let is_cancelled = self.running.as_mut().is_some_and(|turn| {
                    turn.is_cancelled && !std::mem::replace(&mut turn.is_ended, true)
                });
                self.view.end(is_cancelled);
                // What it did not take has a turn of its own.
                self.waiting
                    .iter_mut()
                    .for_each(|waiting| waiting.steers = false);
                if self.running.take_if(|turn| turn.line.is_none()).is_some() {
                    self.done();
                }
            }
            ChatEvent::Settled { line, outcome, .. } => self.handle_outcome(line, &outcome),
            ChatEvent::Said { is_known: true, .. } => {}
            ChatEvent::Said {
                content,
                kind: MessageKind::Error,
                ..
            } => self.view.error(&content),
            ChatEvent::Said { content, kind, .. } => {
                self.view.message(&content, kind == MessageKind::Command);
            }
            ChatEvent::Asked(question) => self.handle_question(question),
            ChatEvent::Withdrawn(id) => {
                self.drop_questions(|question| question.id() == id);
            }
            ChatEvent::Status(status) => {
                if status.session != self.status.session && !self.status.session.is_empty() {
                    self.view
                        .notice(&format!("session: {}", status.session), Style::DIM);
                }
                self.status = status;
            }
            ChatEvent::Sessions(ids) => self.editor.set_sessions(ids),
            ChatEvent::Remark(text) => self.view.notice(&text, Style::YELLOW),
        }
    }

    fn handle_turn_start(&mut self, line: Option<u64>, content: &str) {
        let is_command = content.trim_start().starts_with(',');
        let at = self
            .waiting
            .iter()
            .position(|waiting| Some(waiting.line) == line);
        if let Some(at) = at {
            let waiting = self.waiting.remove(at);
            self.echo(
                &waiting.text,
                if waiting.line >= FIRST_RECOVERED_LINE {
                    EARLIER_CHAT_SUFFIX
                } else {
                    ""
                },
            );
        } else if line.is_none() {
            self.echo(content, EARLIER_CHAT_SUFFIX);
        }
        self.runs_command = is_command;
        self.view.begin(is_command.then_some(content));
        self.running = Some(RunningTurn {
            line,
            since: Instant::now(),
            is_cancelled: false,
            is_ended: false,
        });
    }

    fn handle_outcome(&mut self, line: u64, outcome: &LineOutcome) {
        self.open.retain(|open| *open != line);
        if let Some(turn) = self.running.take_if(|turn| turn.line == Some(line)) {
            self.view.end(false);
            if !turn.is_cancelled {
                self.show_outcome(outcome);
            }
            if !self.leaves_at_interrupt() {
                self.hint = None;
            }
        } else if let Some(at) = self.waiting.iter().position(|waiting| waiting.line == line) {
            let waiting = self.waiting.remove(at);
            match outcome {
                LineOutcome::Withdrawn => self.restore_line(waiting.text),
                LineOutcome::Answered => self.echo(&waiting.text, " (steering)"),
                LineOutcome::Rejected | LineOutcome::NotAnswered(_) => {
                    self.echo(&waiting.text, "");
                    self.show_outcome(outcome);
                }
            }
        } else {
            self.show_outcome(outcome);
        }
        self.done();
    }

    fn show_outcome(&mut self, outcome: &LineOutcome) {
        if let LineOutcome::NotAnswered(reason) = outcome {
            self.view
                .notice(&format!("not answered: {reason}"), Style::YELLOW);
        }
    }

    /// Puts a line that waited back to where it was written. Where something else is being written by now, it waits on.
    fn restore_line(&mut self, text: String) {
        if self.is_writing() {
            return self.send(text);
        }
        self.put_back(&text);
    }

    /// Whether something is being written.
    pub(super) fn is_writing(&self) -> bool {
        let written = self.draft.as_deref().unwrap_or_else(|| self.editor.text());
        !written.is_empty()
    }

    /// Puts a line back to where it was written.
    pub(super) fn put_back(&mut self, text: &str) {
        let command = text.trim_start().strip_prefix(',');
        // It stays what it is: in shell mode commands have no comma, and text would become one.
        let is_shell = self.editor.is_shell() && command.is_some();
        self.editor.set_shell(is_shell);
        let text = command.filter(|_| is_shell).unwrap_or(text);
        match &mut self.draft {
            Some(draft) => text.clone_into(draft),
            None => self.editor.set_text(text),
        }
    }

    fn done(&mut self) {
        if self.is_leaving && !self.is_busy() {
            self.left = Some(ChatExit::Quit);
        }
    }

    /// Writes the lines that steer the running turn where it takes them.
    fn show_steering(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        let (steering, others) = waiting
            .into_iter()
            .partition(|line| line.steers && line.is_taken);
        self.waiting = others;
        let steering: Vec<QueuedLine> = steering;
        for waiting in steering {
            self.echo(&waiting.text, " (steering)");
        }
    }

    /// Writes a line as it was typed.
    pub(super) fn echo(&mut self, text: &str, mark: &str) {
        let (prompt, text) = match text.strip_prefix(',').filter(|_| self.editor.is_shell()) {
            Some(command) => (self.prompt(), command),
            None => (self.name_prompt(), text),
        };
        for (index, part) in sanitize(text).split('\n').enumerate() {
            let mut line = if index == 0 {
                prompt.clone()
            } else {
                Line::new("  ", Style::NONE)
            };
            line.push(&crate::sanitize::without_tabs(part, 4), Style::NONE);
            if index == 0 {
                line.push(mark, Style::DIM);
            }
            self.view.line(line);
        }
    }

    fn handle_question(&mut self, question: UserQuestion) {
        let is_over = self.running.as_ref().is_some_and(|turn| turn.is_cancelled);
        if is_over && matches!(question, UserQuestion::Line(..)) {
            return;
        }
        self.questions.push_back(question);
        if self.questions.len() == 1 {
            self.draft = Some(self.editor.text().to_owned());
            self.editor.set_text("");
            self.show_question();
        }
    }

    /// Shows the question whose turn it is.
    fn show_question(&mut self) {
        if let Some(question) = self.questions.front() {
            self.view.notice(&question.text(), Style::YELLOW);
        }
    }

    /// Nobody waits for these answers any more.
    pub(super) fn drop_questions(&mut self, is_over: impl Fn(&UserQuestion) -> bool) {
        let was_first = self.questions.front().is_some_and(&is_over);
        self.questions.retain(|question| !is_over(question));
        if was_first {
            self.next_question();
        }
    }

    /// The question is answered: the next one is asked, or what was being written comes back.
    pub(super) fn next_question(&mut self) {
        self.editor.set_text("");
        self.show_question();
        if self.questions.is_empty()
            && let Some(draft) = self.draft.take()
        {
            self.editor.set_text(&draft);
        }
    }
}
