//! Approvals: users decide about individual tool calls.
//!
//! A tool call that needs approval is passed to the hook `request_approval` and registered in [`Approvals`] under an
//! id. The component that receives the user's answer (a terminal, a chat, a button) passes it to
//! [`Approvals::submit_answer`]. An answer is for that call with the arguments that were shown. It must arrive before
//! the request expires, from the chat of the call, and from a user who may approve it.

use std::{collections::HashMap, fmt::Write, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};

use crate::{
    error::{Error, Result},
    ids::SessionId,
    sender::{Role, Sender},
};

/// A tool call that is waiting for a user's decision.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ApprovalRequest {
    /// Random id of the request. A request is answered at most once.
    pub id: String,
    /// Name of the tool.
    pub tool: String,
    /// The arguments of the call, with secrets redacted.
    pub arguments: Map<String, Value>,
    /// The sender of the message that led to the call.
    pub sender: Sender,
    /// The session of the turn.
    pub session_id: SessionId,
    /// How long to wait for an answer. Without an answer, the call is denied.
    pub expires: Duration,
    /// Why the call needs approval.
    pub reason: String,
    /// Who may answer, and how.
    pub terms: ApprovalTerms,
}

/// Who may answer an approval request, and how. Other processes do not get it.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ApprovalTerms {
    /// The arguments with their secrets. Set only for the user at the terminal in which bub runs, and only if the call
    /// has secrets.
    pub secret_arguments: Option<Map<String, Value>>,
    /// The roles of users who may answer.
    pub approvers: Vec<Role>,
    /// Whether the sender of the message may answer, if their role is one of `approvers`.
    pub can_asker_answer: bool,
    /// What the conversation contains, if that is why the call needs approval. A rule that allows the tool does not help
    /// then, and the answer [`ApprovalAnswer::Approved`] also allows later calls of the turn.
    pub content_cause: Option<String>,
    /// Whether the answer [`ApprovalAnswer::ApprovedForSession`] is possible.
    pub can_remember: bool,
    /// The policy rule that the answer [`ApprovalAnswer::ApprovedAlways`] adds. `None` if that answer is not possible.
    pub always_rule: Option<String>,
}

impl ApprovalRequest {
    /// Returns the exact call in one line. Characters that are invisible or change the reading order are escaped, so
    /// that the shown text is the text that runs.
    pub fn call_text(&self) -> String {
        let exact = self.terms.secret_arguments.as_ref();
        let arguments = exact.unwrap_or(&self.arguments).iter();
        let arguments: Vec<_> = arguments
            .map(|(name, value)| format!("{name}={}", count_empty_lines(value)))
            .collect();
        let call = format!("{}({})", self.tool, arguments.join(", "));
        escape_invisible(&shorten_spaces(&call))
    }

    /// Returns why the call needs approval, the call, and the rule that the answer `always` adds. Each is one line. The
    /// start and the end of a long call are repeated, because a chat may split the text.
    pub fn question_text(&self) -> String {
        let words: Vec<_> = self.reason.split_whitespace().collect();
        let mut text = escape_invisible(&words.join(" "));
        let call = self.call_text();
        let _ = write!(text, "\nallow {call}?");
        if call.chars().count() > LONG_CALL {
            let end = call.chars().rev().take(REPEATED_LENGTH);
            let end: String = end.collect::<Vec<_>>().into_iter().rev().collect();
            let start: String = call.chars().take(REPEATED_LENGTH).collect();
            let _ = write!(text, "\nthe call starts with {start}\nand ends with {end}");
        }
        if let Some(rule) = &self.terms.always_rule {
            let _ = write!(text, "\n`always` adds the rule: {}", escape_invisible(rule));
        }
        text
    }

    /// Returns the answers that are possible, for a prompt: `y/N`, `y/s/N` or `y/s/a/N`.
    pub fn choices(&self) -> &'static str {
        match (self.terms.can_remember, &self.terms.always_rule) {
            (true, Some(_)) => "y/s/a/N",
            (true, None) => "y/s/N",
            (false, _) => "y/N",
        }
    }

    /// Returns whether a user may give this answer.
    pub fn is_possible(&self, answer: &ApprovalAnswer) -> bool {
        match answer {
            ApprovalAnswer::ApprovedForSession => self.terms.can_remember,
            ApprovalAnswer::ApprovedAlways => self.terms.always_rule.is_some(),
            ApprovalAnswer::Approved | ApprovalAnswer::Denied(_) => true,
        }
    }

    /// Returns whether the sender of the message may answer.
    pub fn is_asker_approver(&self) -> bool {
        self.terms.can_asker_answer && self.terms.approvers.contains(&self.sender.role)
    }
}

/// Escapes characters that are not visible as what they are: control characters, spaces other than the ASCII space,
/// characters that change the reading order, and invisible ones. In JSON strings the escape is unambiguous, because a
/// backslash is escaped there.
pub fn escape_invisible(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        let is_hidden = c != ' ' && (c.is_control() || c.is_whitespace())
            || matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
                | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
                | '\u{2800}' | '\u{3164}' | '\u{e000}'..='\u{f8ff}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{10ffff}');
        if is_hidden {
            escaped.extend(c.escape_unicode());
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// How many characters a call may have whose start and end are not repeated.
const LONG_CALL: usize = 1000;
/// How many characters of the start and of the end are repeated.
const REPEATED_LENGTH: usize = 200;

/// Returns an argument in which long runs of empty lines are replaced by their number.
fn count_empty_lines(value: &Value) -> Value {
    match value {
        Value::String(text) => shorten_empty_lines(text).join("\n").into(),
        Value::Array(values) => values.iter().map(count_empty_lines).collect(),
        Value::Object(fields) => {
            let fields = fields.iter();
            let fields = fields.map(|(name, value)| (name.clone(), count_empty_lines(value)));
            Value::Object(fields.collect())
        }
        other => other.clone(),
    }
}

/// How many empty lines in a row are shown as they are.
pub const MAX_EMPTY_LINES: usize = 2;

/// Returns the lines of a text. Replaces long runs of empty lines by their number, because they would move the rest out
/// of sight.
pub fn shorten_empty_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let rows: Vec<_> = text.split('\n').collect();
    for run in rows.chunk_by(|one, other| is_empty_line(one) == is_empty_line(other)) {
        let is_empty = run.first().is_some_and(|row| is_empty_line(row));
        if is_empty && run.len() > MAX_EMPTY_LINES {
            lines.push(format!("⟨{} empty lines⟩", run.len()));
        } else {
            lines.extend(run.iter().map(ToString::to_string));
        }
    }
    lines
}

/// Returns whether a shell ignores a line. A line of other white space, such as a no-break space, is a command.
pub fn is_empty_line(line: &str) -> bool {
    line.bytes().all(|byte| matches!(byte, b' ' | b'\t'))
}

/// How many spaces in a row are shown as they are, within a line and at its start.
const MAX_SPACE_COUNT: usize = 8;
const MAX_INDENT: usize = 40;

/// Replaces long runs of spaces and tabs in a line by their number, because they would move the rest out of sight.
pub fn shorten_spaces(line: &str) -> String {
    let is_space = |character: char| matches!(character, ' ' | '\t');
    let mut counted = String::with_capacity(line.len());
    let mut rest = line;
    while !rest.is_empty() {
        let text = rest.trim_start_matches(is_space);
        let count = rest.len() - text.len();
        let max = if counted.is_empty() {
            MAX_INDENT
        } else {
            MAX_SPACE_COUNT
        };
        if count > max {
            let _ = write!(counted, "⟨{count} spaces⟩");
        } else {
            counted.extend(rest.get(..count));
        }
        let end = text.find(is_space).unwrap_or(text.len());
        let (word, after) = text.split_at(end);
        counted.push_str(word);
        rest = after;
    }
    counted
}

/// A user's answer to an approval request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ApprovalAnswer {
    /// The call is allowed, once.
    Approved,
    /// The call is allowed now. In this session, the same call is allowed without a question for users with at least
    /// the same role.
    ApprovedForSession,
    /// The call is allowed, and a policy rule is added that allows it. Only owners may answer this.
    ApprovedAlways,
    /// The call is denied, optionally with a reason.
    Denied(Option<String>),
}

impl ApprovalAnswer {
    /// Parses what a user typed: `y`, `s` (this session), `a` (always), `n`, or `n REASON`. An empty text is a no.
    /// Returns `None` for other texts.
    pub fn from_text(text: &str) -> Option<Self> {
        let text = text.trim();
        let (word, rest) = text.split_once([' ', ':', ',']).unwrap_or((text, ""));
        let reason = rest.trim_start_matches([' ', ':', ',']);
        match word.to_ascii_lowercase().as_str() {
            "" if text.is_empty() => Some(Self::Denied(None)),
            "n" | "no" => Some(Self::Denied(
                Some(reason.to_owned()).filter(|text| !text.is_empty()),
            )),
            _ if !rest.is_empty() => None,
            "y" | "yes" => Some(Self::Approved),
            "s" | "session" => Some(Self::ApprovedForSession),
            "a" | "always" => Some(Self::ApprovedAlways),
            _ => None,
        }
    }

    /// Returns whether the call is allowed.
    pub fn is_approval(&self) -> bool {
        !matches!(self, Self::Denied(_))
    }
}

/// The pending approval requests. Cloning is cheap, and clones share one registry.
#[derive(Clone, Debug, Default)]
pub struct Approvals(Arc<Mutex<HashMap<String, PendingApproval>>>);

#[derive(Debug)]
struct PendingApproval {
    request: ApprovalRequest,
    deadline: Instant,
    to_hook: Option<oneshot::Sender<ApprovalAnswer>>,
    from_user: Option<oneshot::Receiver<ApprovalAnswer>>,
    answered_by: Option<Sender>,
    /// The user's answer. The sender is dropped when the request ends.
    ended: watch::Sender<Option<ApprovalAnswer>>,
}

impl Approvals {
    /// Accepts the answer of the user `by` and passes it to the waiting tool call.
    ///
    /// # Errors
    ///
    /// Fails if the request is not pending or belongs to another chat, if `by` may not answer it, or if the answer is
    /// not possible.
    pub fn submit_answer(&self, id: &str, by: &Sender, answer: ApprovalAnswer) -> Result<()> {
        const NOT_FOUND: &str =
            "approval request not found: it was already answered or has expired";
        let invalid = |reason: &str| Err(Error::invalid_input(reason));
        let mut all = self.0.lock();
        let request = all.get_mut(id);
        let Some(pending) = request.filter(|pending| Instant::now() < pending.deadline) else {
            return invalid(NOT_FOUND);
        };
        let request = &pending.request;
        let asker = &request.sender;
        if (&by.channel, &by.chat_id) != (&asker.channel, &asker.chat_id) {
            return invalid("approval request belongs to another chat: answer it there");
        }
        let terms = &request.terms;
        if !terms.approvers.contains(&by.role) {
            let names: Vec<_> = terms.approvers.iter().map(|role| role.name()).collect();
            let roles = names.join(" or ");
            return invalid(&format!(
                "you may not answer this request: it needs the role {roles}"
            ));
        }
        // A sender without an id could be the asker.
        let may_be_asker = by.id.is_empty() || by.id == asker.id;
        if may_be_asker && !terms.can_asker_answer {
            return invalid("you may not answer your own request: another user must approve it");
        }
        match answer {
            ApprovalAnswer::ApprovedAlways if by.role != Role::Owner => {
                return invalid("only an owner may approve a call for always: approve it once");
            }
            _ if !request.is_possible(&answer) => {
                return invalid("this request can be approved only once");
            }
            _ => {}
        }
        let Some(to_hook) = pending.to_hook.take() else {
            return invalid(NOT_FOUND);
        };
        pending.answered_by = Some(by.clone());
        pending.ended.send_replace(Some(answer.clone()));
        // If the turn has ended in the meantime, the receiver is gone.
        to_hook
            .send(answer)
            .or_else(|_| invalid("approval request is no longer pending: its turn has ended"))
    }

    /// Waits for a user's answer to a pending request. Returns `None` if the request is unknown, is already being
    /// waited for, or ends without an answer.
    pub async fn wait_for_answer(&self, id: &str) -> Option<ApprovalAnswer> {
        let answer = self.0.lock().get_mut(id)?.from_user.take()?;
        answer.await.ok()
    }

    /// Waits until a request is not pending any more. Returns the user's answer, or `None` if the request was unknown or
    /// ended without one.
    pub async fn wait_until_ended(&self, id: &str) -> Option<ApprovalAnswer> {
        let mut ended = self.0.lock().get(id)?.ended.subscribe();
        while ended.changed().await.is_ok() {}
        ended.borrow().clone()
    }

    /// Registers a request. It stays pending until the guard is dropped.
    pub fn register(&self, request: &ApprovalRequest, deadline: Instant) -> PendingApprovalGuard {
        let (to_hook, from_user) = oneshot::channel();
        let pending = PendingApproval {
            request: request.clone(),
            deadline,
            to_hook: Some(to_hook),
            from_user: Some(from_user),
            answered_by: None,
            ended: watch::Sender::default(),
        };
        self.0.lock().insert(request.id.clone(), pending);
        PendingApprovalGuard {
            approvals: self.clone(),
            id: request.id.clone(),
        }
    }
}

/// A guard that keeps an approval request pending. Dropping it removes the request.
#[derive(Debug)]
pub struct PendingApprovalGuard {
    approvals: Approvals,
    id: String,
}

impl PendingApprovalGuard {
    /// Returns the user who answered the request, if any.
    pub fn answered_by(&self) -> Option<Sender> {
        self.approvals.0.lock().get(&self.id)?.answered_by.clone()
    }
}

impl Drop for PendingApprovalGuard {
    fn drop(&mut self) {
        self.approvals.0.lock().remove(&self.id);
    }
}
