//! Asking a person whether a tool call may be made: at the terminal, or in the chat the message came from.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    sync::OnceLock,
};

use bub_agent::policy::Approvals;
use bub_gateway::House;
use bub_kernel::{
    ApprovalAnswer, ApprovalRequest, BoxFuture, ChannelMessage, Envelope, Error, Framework,
    FrameworkRef, Result, Sender, State,
};
use rustix::termios::{QueueSelector, tcflush};
use tokio::sync::{Mutex, mpsc};

use super::tape::text;

/// The terminal of the process. One question at a time.
#[derive(Default)]
pub(crate) struct Terminal(Mutex<Option<Lines>>);

/// What is typed. One thread reads it all the time, so that no question takes the answer to another.
struct Lines {
    tty: File,
    typed: mpsc::Receiver<String>,
}

#[bub_macros::hooks(crate = bub_kernel)]
impl Terminal {
    async fn request_approval(
        &self,
        request: &ApprovalRequest,
        state: &State,
    ) -> Result<Option<ApprovalAnswer>> {
        let Some(approvals) = state
            .slot::<Approvals>()
            .filter(|_| request.sender == Sender::terminal())
        else {
            return Ok(None);
        };
        let mut lines = self.0.lock().await;
        if lines.is_none() {
            *lines =
                Some(Lines::open().map_err(|_| Error::config("there is no terminal to ask at"))?);
        }
        let Some(lines) = lines.as_mut() else {
            return Ok(None);
        };
        let answer = lines.ask(&question(request)).await?;
        approvals.answer(&request.id, &request.sender, answer.clone())?;
        Ok(Some(answer))
    }
}

/// Asks in the chat; the answer comes as a message, and the gateway hands it over.
#[derive(Default)]
pub(crate) struct InChannel(OnceLock<Approvals>);

#[bub_macros::hooks(crate = bub_kernel)]
impl InChannel {
    async fn request_approval(
        &self,
        request: &ApprovalRequest,
        state: &State,
    ) -> Result<Option<ApprovalAnswer>> {
        let router = state
            .slot::<FrameworkRef>()
            .and_then(|framework| framework.get()?.router());
        let (Some(router), Some(approvals)) = (router, state.slot::<Approvals>()) else {
            return Ok(None);
        };
        let _ = self.0.set((*approvals).clone());
        let text = format!(
            "{}\nAnswer `,approve {id}` or `,deny {id}`.",
            question(request).trim_end_matches(" [y/N] "),
            id = request.id
        );
        let message = ChannelMessage::new(&request.session_id, &request.sender.channel, text)
            .kind("approval");
        let message = Envelope::from(message.chat_id(&request.sender.chat_id));
        // A channel with buttons has them stand for the two answers.
        router
            .dispatch(&message.with("approval_id", request.id.as_str()))
            .await?;
        // The builtin plugin waits for the answer.
        Ok(None)
    }
}

impl House for InChannel {
    fn wait_for_session<'a>(
        &'a self,
        framework: &'a Framework,
        session_id: &'a str,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(bub_agent::wait_for_session(framework, session_id))
    }

    fn answer_approval(&self, id: &str, by: &Sender, answer: ApprovalAnswer) -> Result<()> {
        let approvals = self.0.get();
        let none =
            || Error::invalid_input("there is no such request; it was answered or has expired");
        approvals.ok_or_else(none)?.answer(id, by, answer)
    }
}

impl Lines {
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
        let mut unanswered = Unanswered {
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
struct Unanswered<'a> {
    tty: &'a File,
    is_so: bool,
}

impl Drop for Unanswered<'_> {
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
    format!("{reason}\nallow {}? [y/N] ", text::harmless(&call))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Map, Value};

    use super::{ApprovalAnswer, ApprovalRequest, Sender, meaning, question};

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
            session_id: String::new(),
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
