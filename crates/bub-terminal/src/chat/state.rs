//! What the interactive and the line-based chat have in common: lines, the running turn, and questions.

use std::{collections::VecDeque, pin::pin, sync::Arc, time::Duration};

use bub_kernel::{ApprovalAnswer, MessageKind, command_line};
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    time::Instant,
};

use crate::{
    Style, answer_notice,
    channel::{ChatEvent, LineOutcome, UserQuestion},
    chat::ChatCommand,
    history::History,
    host::ChatHost,
    parse_answer,
    turn_view::TurnView,
};

/// A second Ctrl-C within this time leaves the chat.
pub(crate) const DOUBLE_INTERRUPT_WINDOW: Duration = Duration::from_secs(2);
/// How long the chat waits for cancelled turns to end when the user leaves.
const QUIT_TIMEOUT: Duration = Duration::from_secs(3);
/// Capacity of the queue of lines that the host has not accepted yet. Accepting a line takes one disk write.
///
/// The chat never waits for space in this queue: the submitting task may itself be waiting for the chat to handle an
/// event. If the queue is full, the line goes back to the user.
const SUBMISSION_CAPACITY: usize = 64;

/// The lines of a chat, the running turn and the questions to the user.
pub(crate) struct ChatState {
    pub(crate) view: TurnView,
    pub(crate) history: History,
    host: Arc<dyn ChatHost>,
    /// The queue of requests to the host.
    submitted: mpsc::Sender<ChatHostRequest>,
    pub(crate) last_line: u64,
    /// Number of images that were read from the clipboard.
    last_image: u64,
    /// Numbers of the submitted lines that have no outcome yet.
    pub(crate) open: Vec<u64>,
    pub(crate) running: Option<RunningTurn>,
    pub(crate) questions: VecDeque<UserQuestion>,
    /// When Ctrl-C was pressed last, and the line of the turn that ran then.
    pub(crate) interrupted: Option<(Instant, Option<u64>)>,
    pub(crate) is_leaving: bool,
    /// The line whose turn the user cancelled last. Its outcome needs no notice.
    cancelled_line: Option<u64>,
}

/// A request from the chat to its host.
enum ChatHostRequest {
    /// Submit a line with this number and text.
    Line(u64, String),
    /// Withdraw the last queued line.
    Withdraw,
    /// Read the image in the clipboard and give it this number.
    ReadClipboardImage(u64),
}

/// The running turn.
pub(crate) struct RunningTurn {
    /// The line that the turn answers. `None` if an earlier chat submitted the line in another session.
    pub(crate) line: Option<u64>,
    pub(crate) since: Instant,
    pub(crate) is_cancelled: bool,
    is_ended: bool,
}

impl ChatState {
    pub(crate) fn new(view: TurnView, history: History, host: Arc<dyn ChatHost>) -> Self {
        Self {
            view,
            history,
            submitted: spawn_submitter(Arc::clone(&host)),
            host,
            last_line: 0,
            last_image: 0,
            open: Vec::new(),
            running: None,
            questions: VecDeque::new(),
            interrupted: None,
            is_leaving: false,
            cancelled_line: None,
        }
    }

    /// Returns whether a turn is running or a line has no outcome yet.
    pub(crate) fn is_busy(&self) -> bool {
        self.running.is_some() || !self.open.is_empty()
    }

    /// Returns whether the user asked to leave and nothing is left to wait for.
    pub(crate) fn should_leave(&self) -> bool {
        self.is_leaving && !self.is_busy()
    }

    /// Returns whether the next Ctrl-C leaves: Ctrl-C was pressed within the last `DOUBLE_INTERRUPT_WINDOW`, and no other
    /// turn has started since. Ctrl-C always belongs to the turn that runs now.
    pub(crate) fn should_leave_on_interrupt(&self) -> bool {
        let running = self.running.as_ref().and_then(|turn| turn.line);
        self.interrupted.is_some_and(|(at, line)| {
            at.elapsed() < DOUBLE_INTERRUPT_WINDOW && (running.is_none() || running == line)
        })
    }

    /// Handles Ctrl-C. Returns whether it was pressed twice, so that the chat must end.
    pub(crate) fn interrupt(&mut self) -> bool {
        let is_second = self.should_leave_on_interrupt();
        let running = self.running.as_ref().and_then(|turn| turn.line);
        self.interrupted = Some((Instant::now(), running));
        is_second
    }

    /// Sends a line to the host. Returns its number, or `None` if the queue is full.
    pub(crate) fn submit(&mut self, text: &str) -> Option<u64> {
        let line = self.last_line + 1;
        self.request(ChatHostRequest::Line(line, text.to_owned()))?;
        self.last_line = line;
        Some(line)
    }

    /// Withdraws the last queued line. Returns `None` if the queue is full.
    pub(crate) fn withdraw_line(&self) -> Option<()> {
        self.request(ChatHostRequest::Withdraw)
    }

    /// Reads the image in the clipboard. Returns its number, or `None` if the queue is full.
    pub(crate) fn read_clipboard_image(&mut self) -> Option<u64> {
        let number = self.last_image + 1;
        self.request(ChatHostRequest::ReadClipboardImage(number))?;
        self.last_image = number;
        Some(number)
    }

    /// Passes a request to the host; returns `None` if the queue is full. A closed queue does not count, because it is
    /// closed only when the chat ends.
    fn request(&self, request: ChatHostRequest) -> Option<()> {
        let sent = self.submitted.try_send(request);
        (!matches!(sent, Err(TrySendError::Full(_)))).then_some(())
    }

    /// Starts a turn. Returns whether it runs a command.
    pub(crate) fn begin_turn(&mut self, line: Option<u64>, content: &str) -> bool {
        let is_command = command_line(content).is_some();
        self.view.begin_turn(is_command.then_some(content));
        self.running = Some(RunningTurn {
            line,
            since: Instant::now(),
            is_cancelled: false,
            is_ended: false,
        });
        is_command
    }

    /// Handles the end of a turn's stream. Returns whether this ended the turn, because no line of this chat waits for
    /// it.
    pub(crate) fn end_stream(&mut self) -> bool {
        // The event may arrive twice; report a cancelled turn once.
        let is_cancelled = self
            .running
            .as_mut()
            .is_some_and(|turn| turn.is_cancelled && !std::mem::replace(&mut turn.is_ended, true));
        self.view.end_turn(is_cancelled);
        self.running.take_if(|turn| turn.line.is_none()).is_some()
    }

    /// Removes a line that has an outcome. Returns the turn of the line if it was running.
    pub(crate) fn settle_line(&mut self, line: u64) -> Option<RunningTurn> {
        self.open.retain(|open| *open != line);
        self.running.take_if(|turn| turn.line == Some(line))
    }

    pub(crate) fn show_outcome(&mut self, line: u64, outcome: &LineOutcome) {
        // The next turn may have started before the outcome of the cancelled one is known.
        let is_cancelled = self.cancelled_line.take_if(|cancelled| *cancelled == line);
        if let (LineOutcome::NotAnswered(reason), None) = (outcome, is_cancelled) {
            let text = format!("not answered: {reason}");
            self.view.show_notice(&text, Style::YELLOW);
        }
    }

    /// Shows a message that was not streamed.
    pub(crate) fn show_message(&mut self, content: &str, kind: MessageKind) {
        match kind {
            MessageKind::Error => self.view.show_error(content),
            kind => self
                .view
                .show_message(content, kind == MessageKind::Command),
        }
    }

    /// Cancels the running turn. Returns whether this drops the first question: questions of plugins are dropped, so
    /// that text typed after Ctrl-C does not answer them.
    pub(crate) async fn cancel_turn(&mut self) -> bool {
        if let Some(turn) = &mut self.running {
            turn.is_cancelled = true;
            self.cancelled_line = turn.line;
        }
        let is_dropped = self.drop_questions(|question| matches!(question, UserQuestion::Line(..)));
        self.host.cancel_turn().await;
        is_dropped
    }

    /// Adds a question to the queue. Ignores the question of a plugin if the running turn is cancelled. Returns whether
    /// the question is now the first one.
    pub(crate) fn add_question(&mut self, question: UserQuestion) -> bool {
        let is_over = self.running.as_ref().is_some_and(|turn| turn.is_cancelled);
        if is_over && matches!(question, UserQuestion::Line(..)) {
            return false;
        }
        if matches!(question, UserQuestion::Call { .. }) {
            self.view.begin_approval();
        }
        self.questions.push_back(question);
        self.questions.len() == 1
    }

    /// Shows the first question of the queue. The call in it has its secrets: it is for the user at the terminal.
    pub(crate) fn show_question(&mut self, width: usize) {
        if let Some(question) = self.questions.front() {
            for line in question.lines(width.saturating_sub(1).max(1)) {
                self.view.push_line(line);
            }
        }
    }

    /// Drops the questions for which `is_over` is true. Returns whether the first question is dropped.
    pub(crate) fn drop_questions(&mut self, is_over: impl Fn(&UserQuestion) -> bool) -> bool {
        let was_first = self.questions.front().is_some_and(&is_over);
        if was_first {
            self.view.end_approval();
        }
        self.questions.retain(|question| !is_over(question));
        was_first
    }

    /// Answers the first question. Returns `false` if it asks for yes or no, and the text is neither.
    pub(crate) fn answer_question(&mut self, text: &str) -> bool {
        let answer = match self.questions.front() {
            Some(UserQuestion::Call { request, .. }) => parse_answer(request, text),
            _ => None,
        };
        // Ignore send errors: the question may have been withdrawn, or the plugin may have exited.
        match (self.questions.pop_front(), answer) {
            (Some(question @ UserQuestion::Call { .. }), None) => {
                self.questions.push_front(question);
                return false;
            }
            (
                Some(UserQuestion::Call {
                    request,
                    answer: sender,
                    ..
                }),
                Some(answer),
            ) => {
                let notice = answer_notice(&request, &answer);
                self.view.end_approval();
                let _ = sender.send(answer);
                self.view.show_notice(&notice, Style::YELLOW);
            }
            (Some(UserQuestion::Line(_, _, sender)), _) => {
                let _ = sender.try_send(text.trim().to_owned());
            }
            (None, _) => {}
        }
        true
    }

    /// Runs a command of the chat. Returns whether the chat must end.
    pub(crate) fn run_chat_command(&mut self, command: ChatCommand) -> bool {
        match command {
            ChatCommand::Quit => return true,
            ChatCommand::Thinking => self.view.toggle_thinking(),
            ChatCommand::Copy => {
                let text = "cannot copy: this terminal has no control sequences";
                self.view.show_notice(text, Style::NONE);
            }
            ChatCommand::Output => self.view.show_hidden_output(),
        }
        false
    }

    /// Denies the calls that the user is asked about, and drops the questions.
    pub(crate) fn deny_questions(&mut self) {
        for question in self.questions.drain(..) {
            if let UserQuestion::Call { answer, .. } = question {
                let _ = answer.send(ApprovalAnswer::Denied(Some("no answer".to_owned())));
            }
        }
    }

    /// Cancels all turns and shows that the user left. Reads the events of the turns until they have ended, so that they do
    /// not wait for space in the queue, and shows how far their calls are.
    pub(crate) async fn quit(&mut self, mut chat_events: mpsc::Receiver<ChatEvent>) {
        let host = Arc::clone(&self.host);
        // Turns that do not end in time are interrupted when the program exits.
        let mut cancelling = pin!(tokio::time::timeout(QUIT_TIMEOUT, host.cancel_all()));
        loop {
            tokio::select! {
                _ = &mut cancelling => break,
                Some(event) = chat_events.recv() => self.handle_last_event(event),
            }
        }
        chat_events.close();
        while let Ok(event) = chat_events.try_recv() {
            self.handle_last_event(event);
        }
        let is_interrupted = self.running.as_ref().is_some_and(|turn| !turn.is_ended);
        self.view.end_turn(is_interrupted);
        self.view.show_notice("Bye.", Style::NONE);
    }

    /// Handles an event after the user has left.
    fn handle_last_event(&mut self, event: ChatEvent) {
        if let ChatEvent::CallsInterrupted(calls) = event {
            self.view.set_call_progress(calls);
        }
    }
}

/// Starts a task that passes requests to the host in order.
fn spawn_submitter(host: Arc<dyn ChatHost>) -> mpsc::Sender<ChatHostRequest> {
    let (sender, mut submissions) = mpsc::channel(SUBMISSION_CAPACITY);
    drop(tokio::spawn(async move {
        while let Some(submission) = submissions.recv().await {
            match submission {
                ChatHostRequest::Line(line, text) => host.submit_line(line, text).await,
                ChatHostRequest::Withdraw => host.withdraw_line(),
                ChatHostRequest::ReadClipboardImage(number) => {
                    host.read_clipboard_image(number).await;
                }
            }
        }
    }));
    sender
}
