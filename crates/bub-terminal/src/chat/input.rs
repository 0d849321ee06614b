//! What somebody types, and what the chat does about it.

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
    pub(super) async fn typed(&mut self, keys: Vec<KeyEvent>) -> Result<()> {
        for key in keys {
            if self.left.is_some() {
                return Ok(());
            }
            self.press(key).await?;
        }
        Ok(())
    }

    async fn press(&mut self, key: KeyEvent) -> Result<()> {
        if key == KeyEvent::Ctrl('c') && self.is_busy() {
            self.interrupt().await;
            return Ok(());
        }
        if key != KeyEvent::Ctrl('c') {
            self.interrupted = None;
            self.hint = None;
        }
        if key == KeyEvent::Up && self.can_take_back() {
            // One by one: what is text stays text, and what is a command a command.
            let last = self.waiting.last().map(|waiting| waiting.line);
            if std::mem::replace(&mut self.taking, last) != last
                && is_full(&self.submitted.try_send(ChatHostRequest::Withdraw))
            {
                // Not asked for: the key can be pressed again.
                self.taking = None;
            }
            return Ok(());
        }
        match self.editor.press(key, self.history.lines()) {
            EditorAction::Changed => {}
            EditorAction::Submit(text) if !self.questions.is_empty() => self.answer(&text),
            EditorAction::Submit(text) => self.submit(text),
            EditorAction::Interrupt => self.interrupt().await,
            EditorAction::End => self.end(),
            EditorAction::ToggleMode => self.editor.set_shell(!self.editor.is_shell()),
            EditorAction::ClearScreen => self.screen.clear_all().map_err(terminal_error)?,
            EditorAction::Suspend => self.suspend()?,
        }
        Ok(())
    }

    /// Whether Up takes back the last line that waits.
    pub(super) fn can_take_back(&self) -> bool {
        self.editor.text().is_empty() && !self.waiting.is_empty() && self.questions.is_empty()
    }

    /// Whether Ctrl-C was pressed just now: then it leaves, whatever runs by now.
    pub(super) fn leaves_at_interrupt(&self) -> bool {
        self.interrupted
            .is_some_and(|at| at.elapsed() < DOUBLE_INTERRUPT_WINDOW)
    }

    /// Ctrl-C: ends the turn; twice: leaves.
    async fn interrupt(&mut self) {
        if self.leaves_at_interrupt() {
            self.left = Some(ChatExit::Quit);
            return;
        }
        self.interrupted = Some(Instant::now());
        if self.is_busy() {
            if let Some(turn) = &mut self.running {
                turn.is_cancelled = true;
            }
            self.hint = Some("cancelled; Ctrl-C again leaves".to_owned());
            // What is typed from now on is for somebody else.
            self.drop_questions(|question| matches!(question, UserQuestion::Line(..)));
            self.host.cancel().await;
        } else {
            self.hint = Some("Ctrl-C again leaves; so does ,quit".to_owned());
        }
    }

    /// Ctrl-D: leaves, after what runs; twice: at once.
    fn end(&mut self) {
        if !self.is_busy() || self.is_leaving {
            self.left = Some(ChatExit::Quit);
        } else {
            self.is_leaving = true;
            self.hint = Some("leaving when this is done; Ctrl-D again leaves now".to_owned());
        }
    }

    fn submit(&mut self, text: String) {
        // H-156
        if text.trim().is_empty() {
            return;
        }
        if let Err(error) = self.history.add(text.trim_end()) {
            self.history_refused(&error);
        }
        let is_shell = self.editor.is_shell() && !text.trim_start().starts_with(',');
        let text = if is_shell { format!(",{text}") } else { text };
        match text.trim() {
            // In the middle of an answer they are not written down: they would be in its way.
            own @ (",quit" | ",exit" | ",thinking") => {
                if !self.is_busy() {
                    self.echo(&text, "");
                }
                if own == ",thinking" {
                    self.view.toggle_thinking();
                } else {
                    self.left = Some(ChatExit::Quit);
                }
            }
            _ => self.send(text),
        }
    }

    /// Sends a line. If there is no room for it, it goes back to the editor; if that is in use, it stays in the history.
    pub(super) fn send(&mut self, text: String) {
        self.is_leaving = false;
        let line = self.last_line + 1;
        let submission = ChatHostRequest::Line(line, text.clone());
        if is_full(&self.submitted.try_send(submission)) {
            if self.is_writing() {
                self.echo(&text, " (not sent)");
            } else {
                self.put_back(&text);
            }
            self.hint = Some("not sent: too many lines are not accepted yet".to_owned());
            return;
        }
        self.last_line = line;
        let is_command = text.trim_start().starts_with(',');
        if self.is_busy() {
            let steers =
                !is_command && !self.runs_command && self.waiting.iter().all(|line| line.steers);
            self.waiting.push(QueuedLine {
                line,
                text,
                steers,
                is_taken: false,
            });
        } else {
            self.runs_command = is_command;
            self.echo(&text, "");
        }
        self.open.push(line);
    }

    fn answer(&mut self, text: &str) {
        if let Some(UserQuestion::Line(_, _, answer)) = self.questions.front()
            && !matches!(text.trim(), ",quit" | ",exit")
        {
            // The plugin may be gone.
            let _ = answer.try_send(text.trim().to_owned());
            self.questions.pop_front();
            self.echo(text, "");
            return self.next_question();
        }
        let answer = match text.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => ApprovalAnswer::Approved,
            "" | "n" | "no" => ApprovalAnswer::Denied(None),
            ",quit" | ",exit" => {
                self.left = Some(ChatExit::Quit);
                return;
            }
            _ => {
                // It was meant for somebody else, who finds it in the history.
                if let Err(error) = self.history.add(text.trim_end()) {
                    self.history_refused(&error);
                }
                self.hint = Some("answer y or n first; Up brings back what you wrote".to_owned());
                return;
            }
        };
        let said = if answer == ApprovalAnswer::Approved {
            "allowed"
        } else {
            "denied"
        };
        if let Some(UserQuestion::Call(_, waiting)) = self.questions.pop_front() {
            let _ = waiting.send(answer);
            self.view.notice(said, Style::YELLOW);
        }
        self.next_question();
    }

    /// Ctrl-Z: to the shell, until that lets the chat go on.
    fn suspend(&mut self) -> Result<()> {
        // What is being said stays to be seen.
        let mut rows = self.view.preview(self.size.rows.saturating_sub(2));
        rows.push(crate::Line::default());
        let cursor = (rows.len() - 1, 0);
        let lines = self.view.take_lines();
        self.screen
            .draw(&lines, &LiveArea { rows, cursor })
            .map_err(terminal_error)?;
        self.screen.forget();
        self.raw = None;
        let own = rustix::process::getpid();
        // Where it is refused, the chat simply goes on.
        let _ = rustix::process::kill_process(own, rustix::process::Signal::TSTP);
        self.raw = Some(RawMode::enter().map_err(terminal_error)?);
        self.size = tty::size();
        self.view.set_width(self.size.columns);
        self.screen.resize(self.size).map_err(terminal_error)
    }
}

/// Whether there was no room. The receiver ends only with the chat.
fn is_full<T>(sent: &Result<(), TrySendError<T>>) -> bool {
    matches!(sent, Err(TrySendError::Full(_)))
}
