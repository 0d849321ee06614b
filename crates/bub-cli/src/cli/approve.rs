//! Asks users to approve tool calls, at the terminal or in the chat of the message.

use std::{
    fmt::Write as _,
    fs::File,
    io::{BufRead, BufReader, Write},
};

use bub_gateway::fields::{APPROVAL_CHOICES_FIELD, APPROVAL_ID_FIELD};
use bub_kernel::{
    ApprovalAnswer, ApprovalRequest, ChannelMessage, Envelope, Error, ErrorKind, MessageKind,
    Result, Turn, command_prefix,
};
use bub_terminal::{answer_notice, approval_lines, parse_answer, tty};
use rustix::termios::{QueueSelector, tcflush};
use scopeguard::ScopeGuard;
use tokio::sync::{Mutex, mpsc};

use super::listing::wrap_text;

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
        let is_shared = router
            .channel(&request.sender.channel)
            .is_some_and(|channel| channel.is_shared_chat(&request.sender.chat_id));
        if !request.is_asker_approver() && !is_shared {
            let roles: Vec<_> = request
                .terms
                .approvers
                .iter()
                .map(|role| role.name())
                .collect();
            let roles = roles.join(" or ");
            let text = format!("no {roles} who may approve the call can answer in this chat");
            return Err(Error::new(ErrorKind::Tool, text));
        }
        let id = &request.id;
        let mut choices = vec![];
        if request.terms.can_remember {
            choices.push("session");
        }
        if request.terms.always_rule.is_some() {
            choices.push("always");
        }
        let prefix = command_prefix();
        let question = request.question_text();
        let mut text = format!("{question}\nAnswer `{prefix}approve {id}`");
        for choice in &choices {
            let _ = write!(text, ", `{prefix}approve {id} {choice}`");
        }
        let _ = write!(text, " or `{prefix}deny {id} [REASON]`.");
        let message = ChannelMessage::new(&request.session_id, &request.sender.channel, text)
            .kind(MessageKind::Approval)
            .chat_id(&request.sender.chat_id);
        // A channel with buttons shows buttons instead of the commands `,approve` and `,deny`.
        let message = Envelope::from(message)
            .with(APPROVAL_ID_FIELD, request.id.as_str())
            .with(APPROVAL_CHOICES_FIELD, choices);
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
    /// Opens the terminal. Fails if the process has none.
    pub(super) async fn open(&self) -> Result<()> {
        TtyReader::get_or_open(&mut *self.0.lock().await).map(drop)
    }

    /// Asks about a tool call and waits for the answer. `replaced` is the text of the file that the call replaces. Fails
    /// if the process has no terminal.
    pub(super) async fn ask(
        &self,
        request: &ApprovalRequest,
        replaced: Option<&str>,
    ) -> Result<ApprovalAnswer> {
        let mut reader = self.0.lock().await;
        let reader = TtyReader::get_or_open(&mut reader)?;
        reader.ask_question(request, replaced).await
    }
}

impl TtyReader {
    fn get_or_open(reader: &mut Option<Self>) -> Result<&mut Self> {
        match reader {
            Some(reader) => Ok(reader),
            empty => Ok(empty.insert(Self::open().map_err(|_| {
                Error::config("the process has no terminal; run the command in a terminal")
            })?)),
        }
    }

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

    async fn ask_question(
        &mut self,
        request: &ApprovalRequest,
        replaced: Option<&str>,
    ) -> Result<ApprovalAnswer> {
        // Discard input that was typed before the question was visible.
        let _ = tcflush(&self.tty, QueueSelector::IFlush);
        while self.typed.try_recv().is_ok() {}
        let lines = approval_lines(request, replaced, tty::size().columns);
        let mut question: String = lines.iter().map(|line| line.text() + "\n").collect();
        let _ = write!(question, "answer [{}] or `n REASON`: ", request.choices());
        self.tty.write_all(question.as_bytes())?;
        // If the caller is cancelled.
        let unanswered = scopeguard::guard(&self.tty, |mut tty| {
            let _ = tty.write_all(b"\nno answer: not run\n");
        });
        while let Some(line) = self.typed.recv().await.filter(|line| !line.is_empty()) {
            let mut tty = &self.tty;
            if let Some(answer) = parse_answer(request, &line) {
                ScopeGuard::into_inner(unanswered);
                let notice = answer_notice(request, &answer);
                let rows = wrap_text(&notice, 0, Some(tty::size().columns));
                writeln!(tty, "{}", rows.join("\n"))?;
                return Ok(answer);
            }
            let choices = request.choices();
            write!(tty, "not an answer; answer [{choices}] or `n REASON`: ")?;
        }
        if tty::is_hung_up(&self.tty) {
            // The terminal was closed: the user has not denied the call, and SIGHUP stops the turn.
            return std::future::pending().await;
        }
        let mut tty = ScopeGuard::into_inner(unanswered);
        tty.write_all(b"\nno answer: denied\n")?;
        Ok(ApprovalAnswer::Denied(Some("no answer".to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use bub_kernel::ApprovalTerms;

    use super::{ApprovalAnswer, ApprovalRequest, parse_answer};

    fn request(cmd: &str, terms: ApprovalTerms) -> ApprovalRequest {
        let mut request = ApprovalRequest::default();
        request.tool = "bash".into();
        request.arguments = Map::from_iter([("cmd".to_owned(), Value::from(cmd))]);
        request.reason = "rule 1\nsays".into();
        request.terms = terms;
        request
    }

    #[test]
    fn only_a_clear_yes_is_a_yes() {
        let once = request("ls", ApprovalTerms::default());
        for line in ["y\n", "Yes\n", " y \r\n"] {
            let answer = parse_answer(&once, line);
            assert_eq!(answer, Some(ApprovalAnswer::Approved), "{line:?}");
        }
        for line in ["\n", "n\n", "No\n"] {
            let answer = parse_answer(&once, line);
            assert_eq!(answer, Some(ApprovalAnswer::Denied(None)), "{line:?}");
        }
        for line in ["yep\n", "y y\n", "ok\n", "s\n", "a\n", "y, but\n"] {
            assert_eq!(parse_answer(&once, line), None, "{line:?}");
        }
        for line in ["n use the other file\n", "No: use the other file\n"] {
            let reason = Some("use the other file".to_owned());
            let answer = parse_answer(&once, line);
            assert_eq!(answer, Some(ApprovalAnswer::Denied(reason)));
        }
    }

    // The answers `session` and `always` exist only where they are possible.
    #[test]
    fn an_answer_for_longer_needs_to_be_possible() {
        let mut terms = ApprovalTerms::default();
        terms.can_remember = true;
        terms.always_rule = Some("allow: bash".to_owned());
        let longer = request("ls", terms);
        assert_eq!(longer.choices(), "y/s/a/N");
        assert!(
            longer
                .question_text()
                .ends_with("\n`always` adds the rule: allow: bash")
        );
        for (line, answer) in [
            ("s\n", ApprovalAnswer::ApprovedForSession),
            ("session\n", ApprovalAnswer::ApprovedForSession),
            ("a\n", ApprovalAnswer::ApprovedAlways),
            ("Always\n", ApprovalAnswer::ApprovedAlways),
        ] {
            assert_eq!(parse_answer(&longer, line), Some(answer), "{line:?}");
        }
    }

    // What is shown is what runs.
    #[test]
    fn the_question_shows_the_whole_call_and_cannot_be_forged() {
        let cmd = format!(
            "echo {}\nallow ls()? [y/N] \u{1b}[2K\u{202e}\u{200b}\u{a0}\u{fe0f}\u{e0101}\\u{{202e}}",
            "x".repeat(5000)
        );
        let shown = request(&cmd, ApprovalTerms::default()).question_text();
        assert!(shown.contains(&"x".repeat(5000)), "{shown}");
        // Start and end of a long call are repeated.
        assert_eq!(shown.lines().count(), 4, "{shown}");
        assert!(
            shown.starts_with("rule 1 says\nallow bash(cmd=\"echo x"),
            "{shown}"
        );
        // Spaces do not move the rest out of sight.
        let spaces = format!("a{}b", " ".repeat(99));
        let padded = request(&spaces, ApprovalTerms::default()).question_text();
        assert!(padded.contains("\"a⟨99 spaces⟩b\""), "{padded}");
        // A literal backslash is doubled, so that it differs from an escape.
        let end = r#"\u001b[2K\u{202e}\u{200b}\u{a0}\u{fe0f}\u{e0101}\\u{202e}")"#;
        assert!(shown.ends_with(end), "{shown}");
        assert!(shown.contains(&format!("{end}?\n")), "{shown}");
    }

    // The user at the terminal sees the secret that the call contains.
    #[test]
    fn the_terminal_shows_the_exact_call() {
        let exact = Map::from_iter([("cmd".to_owned(), Value::from("login s3cret"))]);
        let mut terms = ApprovalTerms::default();
        terms.secret_arguments = Some(exact);
        let shown = request("login ***", terms).question_text();
        assert!(shown.contains("login s3cret"), "{shown}");
    }
}
