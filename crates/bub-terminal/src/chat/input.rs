//! Handling of keyboard input.

use bub_kernel::{Result, command_line, command_prefix};
use tokio::time::Instant;

use super::{
    ChatCommand, ChatExit, ChatScreen, QueuedLine, leave_hint, resolve_slash,
    state::DOUBLE_INTERRUPT_WINDOW, terminal_error,
};
use crate::{
    Style,
    channel::UserQuestion,
    editor::{EditorAction, image_marker},
    keys::KeyEvent,
    screen::LiveArea,
    tty::{self, ModeGuard},
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
        if key == KeyEvent::Ctrl('c') && self.state.is_busy() {
            self.handle_interrupt().await;
            return Ok(());
        }
        if key == KeyEvent::Escape && self.state.is_busy() && !self.editor.has_popup() {
            self.hint = None;
            self.cancel_turn().await;
            return Ok(());
        }
        // On a line with text, Ctrl-C clears the line.
        if key != KeyEvent::Ctrl('c') || !self.editor.text().is_empty() {
            self.state.interrupted = None;
            self.hint = None;
        }
        if key == KeyEvent::Up && self.can_withdraw() {
            // Withdraw one line at a time, so that the editor never joins a command with another line.
            let last = self.queued.last().map(|queued| queued.line);
            if std::mem::replace(&mut self.withdrawing, last) != last
                && self.state.withdraw_line().is_none()
            {
                // The request was not sent; the user can press the key again.
                self.withdrawing = None;
            }
            return Ok(());
        }
        let key = match key {
            KeyEvent::Paste(text) => KeyEvent::Paste(self.editor.mention_image(text)),
            key => key,
        };
        match self.editor.handle_key(key, self.state.history.lines()) {
            EditorAction::Changed => {}
            EditorAction::Submit(text) if !self.state.questions.is_empty() => {
                self.answer_question(&text);
            }
            EditorAction::Submit(text) => self.submit_text(text),
            EditorAction::Interrupt => self.handle_interrupt().await,
            EditorAction::End => self.handle_end_of_input(),
            EditorAction::ToggleMode => self.editor.is_shell ^= true,
            EditorAction::ShowOutput => self.state.view.show_hidden_output(),
            EditorAction::AttachClipboardImage => {
                if let Some(number) = self.state.read_clipboard_image() {
                    let marker = format!("{} ", image_marker(number));
                    let history = self.state.history.lines();
                    self.editor.handle_key(KeyEvent::Paste(marker), history);
                } else {
                    self.set_hint("too many lines are pending; press Ctrl-V again after an answer");
                }
            }
            EditorAction::ClearScreen => self.screen.clear_screen().map_err(terminal_error)?,
            EditorAction::Suspend => self.suspend()?,
        }
        Ok(())
    }

    /// Returns whether Up withdraws the last queued line.
    pub(super) fn can_withdraw(&self) -> bool {
        self.editor.text().is_empty() && !self.queued.is_empty() && self.state.questions.is_empty()
    }

    /// Handles Ctrl-C: cancels the turn. Pressed twice, it leaves.
    async fn handle_interrupt(&mut self) {
        if self.state.interrupt() {
            self.exit = Some(ChatExit::Quit);
            return;
        }
        if self.state.is_busy() {
            self.set_leave_hint("cancelled; press Ctrl-C again to leave");
            self.cancel_turn().await;
        } else {
            self.set_leave_hint(&leave_hint());
        }
    }

    /// Shows a hint for as long as a second Ctrl-C leaves.
    fn set_leave_hint(&mut self, text: &str) {
        let until = Instant::now() + DOUBLE_INTERRUPT_WINDOW;
        self.hint = Some((text.to_owned(), Some(until)));
    }

    async fn cancel_turn(&mut self) {
        if self.state.cancel_turn().await {
            self.show_next_question();
        }
    }

    /// Handles Ctrl-D: leaves after the running turn. Pressed twice, it leaves immediately.
    fn handle_end_of_input(&mut self) {
        if !self.state.is_busy() || self.state.is_leaving {
            self.exit = Some(ChatExit::Quit);
        } else {
            self.state.is_leaving = true;
            self.set_hint("leaving after this turn; press Ctrl-D again to leave now");
        }
    }

    /// Submits the text of the editor: runs a command of the chat itself, such as `,thinking`, or sends the text as a
    /// line.
    pub(super) fn submit_text(&mut self, text: String) {
        // An empty line is not sent (H-156 in `docs/spec`).
        if text.trim().is_empty() {
            return;
        }
        let is_shell = self.editor.is_shell && command_line(&text).is_none();
        let is_confirmed = self.unknown_command.take().as_ref() == Some(&text);
        let resolved = if is_shell {
            Ok(format!("{}{text}", command_prefix()))
        } else {
            resolve_slash(&text, self.editor.commands())
        };
        if let Err(problem) = &resolved
            && !is_confirmed
        {
            self.restore_to_editor(&text);
            self.set_hint(format!("{problem} (press Enter again to send it as text)"));
            self.unknown_command = Some(text);
            return;
        }
        if let Err(error) = self.state.history.add(text.trim_end()) {
            self.report_history_error(&error);
        }
        let text = resolved.unwrap_or(text);
        let Some(command) = ChatCommand::parse(&text) else {
            return self.send_line(text);
        };
        // Do not print these commands in the middle of an answer.
        if !self.state.is_busy() {
            self.echo_line(&text, "");
        }
        if command == ChatCommand::Copy {
            self.copy_answer();
        } else if self.state.run_chat_command(command) {
            self.exit = Some(ChatExit::Quit);
        }
    }

    /// Copies the latest answer to the clipboard with the sequence OSC 52. The terminal may ignore it.
    fn copy_answer(&mut self) {
        let answer = self.state.view.answer();
        let text = match answer.trim() {
            "" => "nothing to copy: this chat has no answer yet".to_owned(),
            answer => {
                let count = answer.chars().count();
                match self.screen.copy_to_clipboard(answer) {
                    Ok(()) => format!("copied {count} characters, if the terminal allows it"),
                    Err(error) => format!("cannot copy the answer: {error}"),
                }
            }
        };
        self.state.view.show_notice(&text, Style::DIM);
    }

    /// Sends a line to the host. If the queue is full, the line goes back to the editor. If the editor already contains
    /// text, the line remains only in the history.
    pub(super) fn send_line(&mut self, text: String) {
        self.state.is_leaving = false;
        let Some(line) = self.state.submit(&text) else {
            if self.has_draft() {
                self.echo_line(&text, " (not sent)");
            } else {
                self.restore_to_editor(&text);
            }
            self.set_hint("not sent: too many lines are pending; wait for an answer");
            return;
        };
        let is_command = command_line(&text).is_some();
        if self.state.is_busy() {
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
        self.state.open.push(line);
    }

    /// Answers the first question with the text of the editor.
    fn answer_question(&mut self, text: &str) {
        if ChatCommand::parse(text) == Some(ChatCommand::Quit) {
            self.exit = Some(ChatExit::Quit);
            return;
        }
        let is_line = matches!(self.state.questions.front(), Some(UserQuestion::Line(..)));
        if !self.state.answer_question(text) {
            // The text was meant as a message; keep it in the history.
            if let Err(error) = self.state.history.add(text.trim_end()) {
                self.report_history_error(&error);
            }
            self.set_hint("answer the question first; press Up to restore your text");
            return;
        }
        if is_line {
            self.echo_line(text, "");
        }
        self.show_next_question();
    }

    /// Handles Ctrl-Z: suspends the program until the shell resumes it.
    fn suspend(&mut self) -> Result<()> {
        // Keep the unfinished answer visible.
        let mut rows = self
            .state
            .view
            .unfinished_tail(self.size.rows.saturating_sub(2));
        rows.push(crate::Line::default());
        let cursor = (rows.len() - 1, 0);
        let lines = self.state.view.take_lines();
        self.screen
            .draw(&lines, &LiveArea { rows, cursor })
            .map_err(terminal_error)?;
        self.screen.keep_live_area();
        self.raw_mode = None;
        let pid = rustix::process::getpid();
        // Ignore errors: the chat then continues.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TSTP);
        self.raw_mode = Some(ModeGuard::raw_mode().map_err(terminal_error)?);
        self.size = tty::size();
        self.state.view.set_width(self.size.columns);
        self.screen.resize(self.size).map_err(terminal_error)
    }
}
