//! Handling of chat events.

use bub_kernel::MessageKind;

use super::{ChatExit, ChatScreen, QueuedLine, RunningTurn};
use crate::{
    Line, Style,
    channel::{ChatEvent, FIRST_RECOVERED_LINE, LineOutcome, UserQuestion},
    sanitize::sanitize,
};
use tokio::time::Instant;

/// Marks a line that an earlier chat left unanswered.
const EARLIER_CHAT_SUFFIX: &str = " (from an earlier chat)";

impl ChatScreen {
    /// Handles one event of the chat.
    pub(super) fn handle_event(&mut self, chat_event: ChatEvent) {
        match chat_event {
            ChatEvent::LineRecovered { line, content } => {
                self.open.push(line);
                self.queued.push(QueuedLine {
                    line,
                    text: content,
                    steers: false,
                    is_accepted: true,
                });
            }
            ChatEvent::LineAccepted(line) => {
                if let Some(queued) = self.queued.iter_mut().find(|queued| queued.line == line) {
                    queued.is_accepted = true;
                }
            }
            ChatEvent::TurnStarted { line, content } => self.handle_turn_start(line, &content),
            ChatEvent::Stream(event) => {
                use bub_kernel::StreamEvent as E;
                self.view.handle_event(&event);
                if matches!(event, E::Final(_) | E::Error(_)) {
                    // The running turn picks up steering messages at this point.
                    self.show_steering_lines();
                }
            }
            ChatEvent::TurnEnded => {
                // The event may arrive twice; report a cancelled turn once.
                let is_cancelled = self.running.as_mut().is_some_and(|turn| {
                    turn.is_cancelled && !std::mem::replace(&mut turn.is_ended, true)
                });
                self.view.end_turn(is_cancelled);
                // Lines that did not steer this turn get their own turns.
                self.queued
                    .iter_mut()
                    .for_each(|queued| queued.steers = false);
                if self.running.take_if(|turn| turn.line.is_none()).is_some() {
                    self.leave_if_idle();
                }
            }
            ChatEvent::LineSettled { line, outcome, .. } => {
                self.handle_line_outcome(line, &outcome);
            }
            ChatEvent::Message {
                is_streamed: true, ..
            } => {}
            ChatEvent::Message {
                content,
                kind: MessageKind::Error,
                ..
            } => self.view.show_error(&content),
            ChatEvent::Message { content, kind, .. } => {
                self.view
                    .show_message(&content, kind == MessageKind::Command);
            }
            ChatEvent::Question(question) => self.handle_question(question),
            ChatEvent::QuestionWithdrawn(id) => {
                self.drop_questions(|question| question.id() == id);
            }
            ChatEvent::Status(status) => {
                if status.session != self.status.session && !self.status.session.is_empty() {
                    self.view
                        .show_notice(&format!("session: {}", status.session), Style::DIM);
                }
                self.status = status;
            }
            ChatEvent::Sessions(ids) => self.editor.set_session_ids(ids),
            ChatEvent::Notice(text) => self.view.show_notice(&text, Style::YELLOW),
        }
    }

    fn handle_turn_start(&mut self, line: Option<u64>, content: &str) {
        let is_command = content.trim_start().starts_with(',');
        let at = self
            .queued
            .iter()
            .position(|queued| Some(queued.line) == line);
        if let Some(at) = at {
            let queued = self.queued.remove(at);
            self.echo_line(
                &queued.text,
                if queued.line >= FIRST_RECOVERED_LINE {
                    EARLIER_CHAT_SUFFIX
                } else {
                    ""
                },
            );
        } else if line.is_none() {
            self.echo_line(content, EARLIER_CHAT_SUFFIX);
        }
        self.runs_command = is_command;
        self.view.begin_turn(is_command.then_some(content));
        self.running = Some(RunningTurn {
            line,
            since: Instant::now(),
            is_cancelled: false,
            is_ended: false,
        });
    }

    /// Handles the outcome of a line: ends its turn, or removes it from the queue.
    fn handle_line_outcome(&mut self, line: u64, outcome: &LineOutcome) {
        self.open.retain(|open| *open != line);
        if let Some(turn) = self.running.take_if(|turn| turn.line == Some(line)) {
            self.view.end_turn(false);
            if !turn.is_cancelled {
                self.show_outcome(outcome);
            }
            if !self.should_leave_on_interrupt() {
                self.hint = None;
            }
        } else if let Some(at) = self.queued.iter().position(|queued| queued.line == line) {
            let queued = self.queued.remove(at);
            match outcome {
                LineOutcome::Withdrawn => self.restore_line(queued.text),
                LineOutcome::Answered => self.echo_line(&queued.text, " (steering)"),
                LineOutcome::Rejected | LineOutcome::NotAnswered(_) => {
                    self.echo_line(&queued.text, "");
                    self.show_outcome(outcome);
                }
            }
        } else {
            self.show_outcome(outcome);
        }
        self.leave_if_idle();
    }

    fn show_outcome(&mut self, outcome: &LineOutcome) {
        if let LineOutcome::NotAnswered(reason) = outcome {
            self.view
                .show_notice(&format!("not answered: {reason}"), Style::YELLOW);
        }
    }

    /// Puts a withdrawn line back into the editor. If the editor is in use, the line is sent again.
    fn restore_line(&mut self, text: String) {
        if self.has_draft() {
            return self.send_line(text);
        }
        self.restore_to_editor(&text);
    }

    /// Returns whether the editor, or the draft behind a question, contains text.
    pub(super) fn has_draft(&self) -> bool {
        let text = self.draft.as_deref().unwrap_or_else(|| self.editor.text());
        !text.is_empty()
    }

    /// Puts a line into the editor, or into the draft behind a question.
    pub(super) fn restore_to_editor(&mut self, text: &str) {
        let command = text.trim_start().strip_prefix(',');
        // Keep the kind of the line: in shell mode commands have no comma, and text would become a command.
        let is_shell = self.editor.is_shell() && command.is_some();
        self.editor.set_shell_mode(is_shell);
        let text = command.filter(|_| is_shell).unwrap_or(text);
        match &mut self.draft {
            Some(draft) => text.clone_into(draft),
            None => self.editor.set_text(text),
        }
    }

    /// Leaves the chat if the user asked to leave and no turn is running.
    fn leave_if_idle(&mut self) {
        if self.is_leaving && !self.is_busy() {
            self.exit = Some(ChatExit::Quit);
        }
    }

    /// Prints accepted lines that steer the running turn at the point where the turn picks them up.
    fn show_steering_lines(&mut self) {
        let queued = std::mem::take(&mut self.queued);
        let (steering, others) = queued
            .into_iter()
            .partition(|line| line.steers && line.is_accepted);
        self.queued = others;
        let steering: Vec<QueuedLine> = steering;
        for queued in steering {
            self.echo_line(&queued.text, " (steering)");
        }
    }

    /// Prints a line that the user typed, with its prompt and a dim suffix.
    pub(super) fn echo_line(&mut self, text: &str, suffix: &str) {
        let (prompt, text) = match text.strip_prefix(',').filter(|_| self.editor.is_shell()) {
            Some(command) => (self.prompt(), command),
            None => (self.workspace_prompt(), text),
        };
        for (index, part) in sanitize(text).split('\n').enumerate() {
            let mut line = if index == 0 {
                prompt.clone()
            } else {
                Line::new("  ", Style::NONE)
            };
            line.push(&crate::sanitize::expand_tabs(part, 4), Style::NONE);
            if index == 0 {
                line.push(suffix, Style::DIM);
            }
            self.view.push_line(line);
        }
    }

    /// Adds a question to the queue. Shows it if no other question is open.
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

    /// Shows the first question of the queue.
    fn show_question(&mut self) {
        if let Some(question) = self.questions.front() {
            self.view.show_notice(&question.text(), Style::YELLOW);
        }
    }

    /// Drops the questions for which `is_over` is true. Shows the next question if the first one is dropped.
    pub(super) fn drop_questions(&mut self, is_over: impl Fn(&UserQuestion) -> bool) {
        let was_first = self.questions.front().is_some_and(&is_over);
        self.questions.retain(|question| !is_over(question));
        if was_first {
            self.show_next_question();
        }
    }

    /// Shows the next question. Restores the draft if no question remains.
    pub(super) fn show_next_question(&mut self) {
        self.editor.set_text("");
        self.show_question();
        if self.questions.is_empty()
            && let Some(draft) = self.draft.take()
        {
            self.editor.set_text(&draft);
        }
    }
}
