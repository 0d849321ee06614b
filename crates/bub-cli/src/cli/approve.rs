//! Approvals: asks users about tool calls, at the terminal or in the chat that the message came from.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
};

use bub_gateway::fields::APPROVAL_ID_FIELD;
use bub_kernel::{
    ApprovalAnswer, ApprovalRequest, ChannelMessage, Envelope, Error, MessageKind, Result, Turn,
};
use rustix::termios::{QueueSelector, tcflush};
use tokio::sync::{Mutex, mpsc};

use super::tape::text;

/// Decides how users are asked about tool calls, for every command: the channel of the sender asks, or the question is
/// sent as a message. In that case the builtin plugin waits for the answer, which the gateway hands over.
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
            approvals.answer(&request.id, &request.sender, answer.clone())?;
            return Ok(Some(answer));
        }
        let text = format!(
            "{}\nAnswer `,approve {id}` or `,deny {id}`.",
            question(request).trim_end_matches(" [y/N] "),
            id = request.id
        );
        let message = ChannelMessage::new(&request.session_id, &request.sender.channel, text)
            .kind(MessageKind::Approval)
            .chat_id(&request.sender.chat_id);
        // A channel with buttons shows them instead of the two commands.
        let message = Envelope::from(message).with(APPROVAL_ID_FIELD, request.id.as_str());
        turn.deliver(message).await?;
        Ok(None)
    }
}

/// The terminal of the process. One question at a time.
#[derive(Default)]
pub(super) struct TerminalApprover(Mutex<Option<TtyReader>>);

/// The typed lines. One thread reads all of them, so that no question gets the answer to another.
struct TtyReader {
    tty: File,
    typed: mpsc::Receiver<String>,
}

impl TerminalApprover {
    /// Asks about a tool call and waits for the answer.
    pub(super) async fn ask(&self, request: &ApprovalRequest) -> Result<ApprovalAnswer> {
        let mut lines = self.0.lock().await;
        let lines = match &mut *lines {
            Some(lines) => lines,
            empty => {
                let opened = TtyReader::open();
                let opened = opened.map_err(|_| Error::config("there is no terminal to ask at"));
                empty.insert(opened?)
            }
        };
        lines.ask(&question(request)).await
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
                // Nothing at all is Ctrl-D; the terminal goes on after it.
                while reader.read_line(&mut line).is_ok() {
                    if sender.blocking_send(std::mem::take(&mut line)).is_err() {
                        break;
                    }
                }
            })?;
        Ok(Self { tty, typed })
    }

    async fn ask(&mut self, question: &str) -> Result<ApprovalAnswer> {
        // What was typed before the question was seen is no answer to it.
        let _ = tcflush(&self.tty, QueueSelector::IFlush);
        while self.typed.try_recv().is_ok() {}
        self.tty.write_all(question.as_bytes())?;
        let mut unanswered = OpenPromptGuard {
            tty: &self.tty,
            is_so: true,
        };
        let line = self.typed.recv().await.filter(|line| !line.is_empty());
        unanswered.is_so = line.is_none();
        Ok(line.map_or_else(
            || ApprovalAnswer::Denied(Some("no answer".to_owned())),
            |line| meaning(&line),
        ))
    }
}

/// A question that stands there. Whoever asked may be gone by now; the line must end all the same.
struct OpenPromptGuard<'a> {
    tty: &'a File,
    is_so: bool,
}

impl Drop for OpenPromptGuard<'_> {
    fn drop(&mut self) {
        if self.is_so {
            let _ = self.tty.write_all(b"\nno answer: denied\n");
        }
    }
}

fn meaning(line: &str) -> ApprovalAnswer {
    match line.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => ApprovalAnswer::Approved,
        _ => ApprovalAnswer::Denied(None),
    }
}

/// The call in full: nobody can approve what was cut away.
fn question(request: &ApprovalRequest) -> String {
    let arguments: Vec<_> = request
        .arguments
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let call = format!("{}({})", request.tool, arguments.join(", "));
    let reason = text::line(&request.reason);
    // In JSON no value spans lines, so what looks like a question of ours is one.
    format!("{reason}\nallow {}? [y/N] ", text::sanitize(&call))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Map, Value};

    use bub_kernel::Sender;

    use super::{ApprovalAnswer, ApprovalRequest, meaning, question};

    #[test]
    fn only_a_clear_yes_is_a_yes() {
        for line in ["y\n", "Yes\n", " y \r\n"] {
            assert_eq!(meaning(line), ApprovalAnswer::Approved, "{line:?}");
        }
        for line in ["", "\n", "n\n", "yep\n", "y y\n", "ok\n"] {
            assert_eq!(meaning(line), ApprovalAnswer::Denied(None), "{line:?}");
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
        let shown = question(&request);
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
