//! Asks users to approve tool calls, at the terminal or in the chat of the message.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
};

use bub_gateway::fields::APPROVAL_ID_FIELD;
use bub_kernel::{
    ApprovalAnswer, ApprovalRequest, ChannelMessage, Envelope, Error, MessageKind, Result, Turn,
};
use bub_terminal::channel::approval_question;
use rustix::termios::{QueueSelector, tcflush};
use scopeguard::ScopeGuard;
use tokio::sync::{Mutex, mpsc};

/// Implements the hook `request_approval` for all commands: the channel of the sender asks the user, or the question is
/// sent to the chat as a message.
///
/// If the question is sent as a message, the plugin `builtin` waits for the user's answer, which the gateway receives
/// and passes on.
#[derive(Default)]
pub(crate) struct ApprovalHook;

#[bub_macros::hooks(crate = bub_kernel)]
impl ApprovalHook {
    async fn request_approval(
        &self,
        request: &ApprovalRequest,
        turn: &Turn,
    ) -> Result<Option<ApprovalAnswer>> {
        let framework = turn.framework();
        let Some(router) = framework.router() else {
            return Ok(None);
        };
        if let Some(channel) = router.channel(&request.sender.channel)
            && let Some(answer) = channel.request_approval(request).await?
        {
            let approvals = framework.approvals();
            approvals.submit_answer(&request.id, &request.sender, answer.clone())?;
            return Ok(Some(answer));
        }
        let text = format!(
            "{}\nAnswer `,approve {id}` or `,deny {id}`.",
            approval_question(request),
            id = request.id
        );
        let message = ChannelMessage::new(&request.session_id, &request.sender.channel, text)
            .kind(MessageKind::Approval)
            .chat_id(&request.sender.chat_id);
        // A channel with buttons shows buttons instead of the commands `,approve` and `,deny`.
        let message = Envelope::from(message).with(APPROVAL_ID_FIELD, request.id.as_str());
        turn.deliver(message).await?;
        Ok(None)
    }
}

/// Asks for approvals at the terminal of the process, one question at a time.
#[derive(Default)]
pub(super) struct TerminalApprover(Mutex<Option<TtyReader>>);

/// Reads the lines that the user types at the terminal. A single thread reads all of them, so that an answer never
/// reaches the wrong question.
struct TtyReader {
    tty: File,
    typed: mpsc::Receiver<String>,
}

impl TerminalApprover {
    /// Asks about a tool call and waits for the answer. Fails if the process has no terminal.
    pub(super) async fn ask(&self, request: &ApprovalRequest) -> Result<ApprovalAnswer> {
        let mut reader = self.0.lock().await;
        let reader = match &mut *reader {
            Some(reader) => reader,
            empty => empty.insert(TtyReader::open().map_err(|_| {
                Error::config("cannot ask for approval: the process has no terminal; run the command in a terminal")
            })?),
        };
        let question = format!("{} [y/N] ", approval_question(request));
        reader.ask_question(&question).await
    }
}

impl TtyReader {
    fn open() -> std::io::Result<Self> {
        let tty = File::options().read(true).write(true).open("/dev/tty")?;
        let (sender, typed) = mpsc::channel(16);
        let mut reader = BufReader::new(tty.try_clone()?);
        std::thread::Builder::new()
            .name("terminal".to_owned())
            .spawn(move || {
                let mut line = String::new();
                // An empty read is Ctrl-D; more lines can follow.
                while reader.read_line(&mut line).is_ok() {
                    if sender.blocking_send(std::mem::take(&mut line)).is_err() {
                        break;
                    }
                }
            })?;
        Ok(Self { tty, typed })
    }

    async fn ask_question(&mut self, question: &str) -> Result<ApprovalAnswer> {
        // Discard input that was typed before the question was visible.
        let _ = tcflush(&self.tty, QueueSelector::IFlush);
        while self.typed.try_recv().is_ok() {}
        self.tty.write_all(question.as_bytes())?;
        // Also if the caller is cancelled.
        let unanswered = scopeguard::guard(&self.tty, |mut tty| {
            let _ = tty.write_all(b"\nno answer: denied\n");
        });
        let line = self.typed.recv().await.filter(|line| !line.is_empty());
        if line.is_some() {
            ScopeGuard::into_inner(unanswered);
        }
        Ok(match line {
            Some(line) => parse_answer(&line),
            None => ApprovalAnswer::Denied(Some("no answer".to_owned())),
        })
    }
}

fn parse_answer(line: &str) -> ApprovalAnswer {
    match line.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => ApprovalAnswer::Approved,
        _ => ApprovalAnswer::Denied(None),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Map, Value};

    use bub_kernel::Sender;

    use super::{ApprovalAnswer, ApprovalRequest, approval_question, parse_answer};

    #[test]
    fn only_a_clear_yes_is_a_yes() {
        for line in ["y\n", "Yes\n", " y \r\n"] {
            assert_eq!(parse_answer(line), ApprovalAnswer::Approved, "{line:?}");
        }
        for line in ["", "\n", "n\n", "yep\n", "y y\n", "ok\n"] {
            assert_eq!(parse_answer(line), ApprovalAnswer::Denied(None), "{line:?}");
        }
    }

    #[test]
    fn the_question_shows_the_whole_call_and_cannot_be_forged() {
        let cmd = format!(
            "echo {}\nallow ls()? [y/N] \u{1b}[2K\u{202e}",
            "x".repeat(5000)
        );
        let request = ApprovalRequest {
            id: "1".to_owned(),
            tool: "bash".to_owned(),
            arguments: Map::from_iter([("cmd".to_owned(), Value::from(cmd))]),
            sender: Sender::terminal(),
            session_id: bub_kernel::SessionId::default(),
            expires: Duration::ZERO,
            reason: "rule 1\nsays".to_owned(),
        };
        let shown = approval_question(&request);
        assert!(shown.contains(&"x".repeat(5000)), "{shown}");
        assert_eq!(shown.lines().count(), 2, "{shown}");
        assert!(
            shown.starts_with("rule 1 says\nallow bash(cmd=\"echo x"),
            "{shown}"
        );
        assert!(
            !shown.contains('\u{1b}') && !shown.contains('\u{202e}'),
            "{shown}"
        );
    }
}
