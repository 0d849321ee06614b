//! Handling of chat events.

use bub_kernel::{StreamEvent, command_line};

use super::{ChatExit, ChatScreen, QueuedLine};
use crate::{
    Line, Style,
    channel::{ChatEvent, FIRST_RECOVERED_LINE, LineOutcome},
    editor::image_marker,
    sanitize::sanitize,
};

/// The suffix of a printed line that an earlier chat left unanswered.
const EARLIER_CHAT_SUFFIX: &str = " (from an earlier chat)";

impl ChatScreen {
    /// Handles one event of the chat.
    pub(super) fn handle_event(&mut self, chat_event: ChatEvent) {
        match chat_event {
            ChatEvent::LineRecovered { line, content } => {
                self.state.open.push(line);
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
            ChatEvent::ReplacedFiles(texts) => self.state.view.set_replaced_files(texts),
            ChatEvent::Stream(event) => {
                use bub_kernel::StreamEvent as E;
                self.state.view.handle_event(&event);
                if matches!(event, E::Final(_) | E::Error(_)) {
                    // The running turn picks up steering messages at this point.
                    self.show_steering_lines();
                }
            }
            ChatEvent::SetupGuide(text) => {
                self.state.view.handle_event(&StreamEvent::Text(text));
            }
            ChatEvent::CallsInterrupted(calls) => self.state.view.set_call_progress(calls),
            ChatEvent::TurnEnded => {
                let is_over = self.state.end_stream();
                // Lines that did not steer this turn get their own turns.
                let queued = self.queued.iter_mut();
                queued.for_each(|queued| queued.steers = false);
                if is_over {
                    self.leave_if_idle();
                }
            }
            ChatEvent::LineSettled { line, outcome, .. } => {
                self.handle_line_outcome(line, &outcome);
            }
            ChatEvent::Message {
                content,
                kind,
                is_streamed,
            } => {
                if !is_streamed {
                    self.state.show_message(&content, kind);
                }
            }
            ChatEvent::Question(question) => {
                if self.state.add_question(question) {
                    self.draft = Some(self.editor.text().to_owned());
                    self.editor.set_text("");
                    self.show_question();
                }
            }
            ChatEvent::QuestionWithdrawn(id) => {
                if self.state.drop_questions(|question| question.id() == id) {
                    self.show_next_question();
                }
            }
            ChatEvent::Status(status) => {
                if status.session != self.status.session && !self.status.session.is_empty() {
                    self.state
                        .view
                        .show_notice(&format!("session: {}", status.session), Style::DIM);
                }
                self.status = status;
            }
            ChatEvent::Sessions(ids) => self.editor.set_session_ids(ids),
            ChatEvent::ImageRejected { number, reason } => {
                let marker = image_marker(number);
                self.editor.remove_text(&marker);
                if let Some(draft) = &mut self.draft {
                    *draft = draft.replace(&marker, "");
                }
                self.state.view.show_notice(&reason, Style::YELLOW);
            }
            ChatEvent::Notice(text) => self.state.view.show_notice(&text, Style::YELLOW),
        }
    }

    fn handle_turn_start(&mut self, line: Option<u64>, content: &str) {
        match line.map(|line| self.take_queued(line)) {
            Some(Some(queued)) if queued.line >= FIRST_RECOVERED_LINE => {
                self.echo_line(&queued.text, EARLIER_CHAT_SUFFIX);
            }
            Some(Some(queued)) => self.echo_line(&queued.text, ""),
            Some(None) => {}
            None => self.echo_line(content, EARLIER_CHAT_SUFFIX),
        }
        self.runs_command = self.state.begin_turn(line, content);
    }

    /// Removes a line from the queue.
    fn take_queued(&mut self, line: u64) -> Option<QueuedLine> {
        let at = self.queued.iter().position(|queued| queued.line == line)?;
        Some(self.queued.remove(at))
    }

    /// Handles the outcome of a line: ends the line's turn, or removes the line from the queue.
    fn handle_line_outcome(&mut self, line: u64, outcome: &LineOutcome) {
        if let Some(turn) = self.state.settle_line(line) {
            self.state.view.end_turn(false);
            if !turn.is_cancelled {
                self.state.show_outcome(line, outcome);
            }
        } else if let Some(queued) = self.take_queued(line) {
            match outcome {
                LineOutcome::Withdrawn => self.restore_line(queued.text),
                LineOutcome::Answered => self.echo_line(&queued.text, " (steering)"),
                LineOutcome::Rejected | LineOutcome::NotAnswered(_) => {
                    self.echo_line(&queued.text, "");
                    self.state.show_outcome(line, outcome);
                }
            }
        } else {
            self.state.show_outcome(line, outcome);
        }
        self.leave_if_idle();
    }

    /// Puts a withdrawn line back into the editor. If the editor already contains text, the line is sent again.
    fn restore_line(&mut self, text: String) {
        if self.has_draft() {
            return self.send_line(text);
        }
        self.restore_to_editor(&text);
    }

    /// Returns whether the editor contains text. While a question is open, checks the draft instead: the text that was
    /// in the editor before the question.
    pub(super) fn has_draft(&self) -> bool {
        let text = self.draft.as_deref().unwrap_or_else(|| self.editor.text());
        !text.is_empty()
    }

    /// Puts a line into the editor. While a question is open, puts it into the draft instead, which is restored after
    /// the question.
    pub(super) fn restore_to_editor(&mut self, text: &str) {
        let command = command_line(text);
        // Keep the kind of the line: in shell mode commands have no comma, and text would become a command.
        let is_shell = self.editor.is_shell && command.is_some();
        self.editor.is_shell = is_shell;
        let text = command.filter(|_| is_shell).unwrap_or(text);
        match &mut self.draft {
            Some(draft) => text.clone_into(draft),
            None => self.editor.set_text(text),
        }
    }

    /// Leaves the chat if the user asked to leave, no turn is running, and all lines have an outcome.
    fn leave_if_idle(&mut self) {
        if self.state.should_leave() {
            self.exit = Some(ChatExit::Quit);
        }
    }

    /// Prints the accepted lines that steer the running turn. Called when the turn picks them up.
    fn show_steering_lines(&mut self) {
        let queued = std::mem::take(&mut self.queued);
        let steering: Vec<_>;
        (steering, self.queued) = queued
            .into_iter()
            .partition(|line| line.steers && line.is_accepted);
        for queued in steering {
            self.echo_line(&queued.text, " (steering)");
        }
    }

    /// Prints a line that the user typed, after the prompt of the editor and with a dim suffix.
    pub(super) fn echo_line(&mut self, text: &str, suffix: &str) {
        let (prompt, text) = match command_line(text).filter(|_| self.editor.is_shell) {
            Some(command) => (self.prompt(), command),
            None => (self.workspace_prompt(), text),
        };
        for (index, part) in sanitize(text).split('\n').enumerate() {
            let mut line = if index == 0 {
                prompt.clone()
            } else {
                Line::new("  ", Style::NONE)
            };
            line.push(&crate::sanitize::expand_tabs(part, 0, 4), Style::NONE);
            if index == 0 {
                line.push(suffix, Style::DIM);
            }
            self.state.view.push_line(line);
        }
    }

    /// Shows the first question of the queue.
    fn show_question(&mut self) {
        self.state.show_question(self.size.columns);
    }

    /// Shows the next question. Restores the draft if no question remains.
    pub(super) fn show_next_question(&mut self) {
        self.editor.set_text("");
        self.show_question();
        if self.state.questions.is_empty()
            && let Some(draft) = self.draft.take()
        {
            self.editor.set_text(&draft);
        }
    }
}
