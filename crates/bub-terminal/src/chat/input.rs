//! Handling of keyboard input.

use bub_kernel::{ApprovalAnswer, Result};
use tokio::{sync::mpsc::error::TrySendError, time::Instant};

use super::{
    ChatExit, ChatHostRequest, ChatScreen, DOUBLE_INTERRUPT_WINDOW, QueuedLine, terminal_error,
};
use crate::{
    Style,
    channel::UserQuestion,
    editor::EditorAction,
    keys::KeyEvent,
    screen::LiveArea,
    tty::{self, RawMode},
};

impl ChatScreen {
    pub(super) async fn handle_keys(&mut self, keys: Vec<KeyEvent>) -> Result<()> {
        for key in keys {
            if self.exit.is_some() {
                return Ok(());
            }
            self.handle_key(key).await?;
        }
        Ok(())
    }

    async fn handle_key(&mut self, key: KeyEvent) -> Result<()> {
        if key == KeyEvent::Ctrl('c') && self.is_busy() {
            self.handle_interrupt().await;
            return Ok(());
        }
        if key != KeyEvent::Ctrl('c') {
            self.interrupted = None;
            self.hint = None;
        }
        if key == KeyEvent::Up && self.can_withdraw() {
            // Withdraw one line at a time, so that text stays text and a command stays a command.
            let last = self.queued.last().map(|queued| queued.line);
            if std::mem::replace(&mut self.withdrawing, last) != last
                && is_queue_full(&self.submitted.try_send(ChatHostRequest::Withdraw))
            {
                // The request was not sent; the user can press the key again.
                self.withdrawing = None;
            }
            return Ok(());
        }
        match self.editor.handle_key(key, self.history.lines()) {
            EditorAction::Changed => {}
            EditorAction::Submit(text) if !self.questions.is_empty() => self.answer_question(&text),
            EditorAction::Submit(text) => self.submit_text(text),
            EditorAction::Interrupt => self.handle_interrupt().await,
            EditorAction::End => self.handle_end_of_input(),
            EditorAction::ToggleMode => self.editor.set_shell_mode(!self.editor.is_shell()),
            EditorAction::ClearScreen => self.screen.clear_screen().map_err(terminal_error)?,
            EditorAction::Suspend => self.suspend()?,
        }
        Ok(())
    }

    /// Returns whether Up withdraws the last queued line.
    pub(super) fn can_withdraw(&self) -> bool {
        self.editor.text().is_empty() && !self.queued.is_empty() && self.questions.is_empty()
    }

    /// Returns whether Ctrl-C was pressed a moment ago. The next Ctrl-C then leaves, even if another turn runs by now.
    pub(super) fn should_leave_on_interrupt(&self) -> bool {
        self.interrupted
            .is_some_and(|at| at.elapsed() < DOUBLE_INTERRUPT_WINDOW)
    }

    /// Handles Ctrl-C: cancels the turn. Pressed twice, it leaves.
    async fn handle_interrupt(&mut self) {
        if self.should_leave_on_interrupt() {
            self.exit = Some(ChatExit::Quit);
            return;
        }
        self.interrupted = Some(Instant::now());
        if self.is_busy() {
            if let Some(turn) = &mut self.running {
                turn.is_cancelled = true;
            }
            self.hint = Some("cancelled; press Ctrl-C again to leave".to_owned());
            // Drop plugin questions, so that text typed after Ctrl-C does not answer them.
            self.drop_questions(|question| matches!(question, UserQuestion::Line(..)));
            self.host.cancel_turn().await;
        } else {
            self.hint = Some("press Ctrl-C again or type ,quit to leave".to_owned());
        }
    }

    /// Handles Ctrl-D: leaves after the running turn. Pressed twice, it leaves immediately.
    fn handle_end_of_input(&mut self) {
        if !self.is_busy() || self.is_leaving {
            self.exit = Some(ChatExit::Quit);
        } else {
            self.is_leaving = true;
            self.hint = Some("leaving after this turn; press Ctrl-D again to leave now".to_owned());
        }
    }

    /// Submits the text of the editor: runs a command of the chat, or sends a line.
    fn submit_text(&mut self, text: String) {
        // H-156: an empty line is not sent.
        if text.trim().is_empty() {
            return;
        }
        if let Err(error) = self.history.add(text.trim_end()) {
            self.report_history_error(&error);
        }
        let is_shell = self.editor.is_shell() && !text.trim_start().starts_with(',');
        let text = if is_shell { format!(",{text}") } else { text };
        match text.trim() {
            // Do not echo these in the middle of an answer.
            command @ (",quit" | ",exit" | ",thinking") => {
                if !self.is_busy() {
                    self.echo_line(&text, "");
                }
                if command == ",thinking" {
                    self.view.toggle_thinking();
                } else {
                    self.exit = Some(ChatExit::Quit);
                }
            }
            _ => self.send_line(text),
        }
    }

    /// Sends a line. If the queue is full, the line goes back to the editor. If the editor is in use, the line remains
    /// only in the history.
    pub(super) fn send_line(&mut self, text: String) {
        self.is_leaving = false;
        let line = self.last_line + 1;
        let submission = ChatHostRequest::Line(line, text.clone());
        if is_queue_full(&self.submitted.try_send(submission)) {
            if self.has_draft() {
                self.echo_line(&text, " (not sent)");
            } else {
                self.restore_to_editor(&text);
            }
            self.hint = Some("not sent: too many lines are pending; wait for an answer".to_owned());
            return;
        }
        self.last_line = line;
        let is_command = text.trim_start().starts_with(',');
        if self.is_busy() {
            let steers =
                !is_command && !self.runs_command && self.queued.iter().all(|line| line.steers);
            self.queued.push(QueuedLine {
                line,
                text,
                steers,
                is_accepted: false,
            });
        } else {
            self.runs_command = is_command;
            self.echo_line(&text, "");
        }
        self.open.push(line);
    }

    /// Answers the first question with the text of the editor.
    fn answer_question(&mut self, text: &str) {
        if let Some(UserQuestion::Line(_, _, answer)) = self.questions.front()
            && !matches!(text.trim(), ",quit" | ",exit")
        {
            // Ignore errors: the plugin may have exited.
            let _ = answer.try_send(text.trim().to_owned());
            self.questions.pop_front();
            self.echo_line(text, "");
            return self.show_next_question();
        }
        let answer = match text.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => ApprovalAnswer::Approved,
            "" | "n" | "no" => ApprovalAnswer::Denied(None),
            ",quit" | ",exit" => {
                self.exit = Some(ChatExit::Quit);
                return;
            }
            _ => {
                // The text was meant as a message; keep it in the history.
                if let Err(error) = self.history.add(text.trim_end()) {
                    self.report_history_error(&error);
                }
                self.hint = Some("answer y or n first; press Up to restore your text".to_owned());
                return;
            }
        };
        let notice = if answer == ApprovalAnswer::Approved {
            "allowed"
        } else {
            "denied"
        };
        if let Some(UserQuestion::Call(_, answer_sender)) = self.questions.pop_front() {
            let _ = answer_sender.send(answer);
            self.view.show_notice(notice, Style::YELLOW);
        }
        self.show_next_question();
    }

    /// Handles Ctrl-Z: suspends the program until the shell resumes it.
    fn suspend(&mut self) -> Result<()> {
        // Keep the unfinished answer visible.
        let mut rows = self.view.unfinished_tail(self.size.rows.saturating_sub(2));
        rows.push(crate::Line::default());
        let cursor = (rows.len() - 1, 0);
        let lines = self.view.take_lines();
        self.screen
            .draw(&lines, &LiveArea { rows, cursor })
            .map_err(terminal_error)?;
        self.screen.keep_live_area();
        self.raw_mode = None;
        let pid = rustix::process::getpid();
        // Ignore errors: the chat then continues.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TSTP);
        self.raw_mode = Some(RawMode::enter().map_err(terminal_error)?);
        self.size = tty::size();
        self.view.set_width(self.size.columns);
        self.screen.resize(self.size).map_err(terminal_error)
    }
}

/// Returns whether the queue was full. The receiver is closed only when the chat ends.
fn is_queue_full<T>(sent: &Result<(), TrySendError<T>>) -> bool {
    matches!(sent, Err(TrySendError::Full(_)))
}
