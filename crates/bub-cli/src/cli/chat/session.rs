//! The session of a chat: selects it at the start and follows `,new` and `,resume`.

use bub_agent::record_session_switch;
use bub_kernel::{Framework, Result, SessionId, tape_error};
use bub_tape::{EntryKind, EntryRange, TapeListFilter, TapeName, message_text};
use bub_terminal::{channel::CHANNEL_NAME, chat::LastExchange};
use futures_util::StreamExt as _;

use super::{ChatArgs, prompt};

/// Maximum lines shown of the last message of a session.
const MAX_MESSAGE_LINES: usize = 5;
/// Maximum lines shown of the last answer of a session.
const MAX_ANSWER_LINES: usize = 20;
/// Maximum number of entries that are searched for the last exchange.
const MAX_ENTRIES_READ: usize = 500;
/// Separates the id of a chat's first session from the timestamp in the ids of its later sessions.
const SESSION_SEPARATOR: char = '~';

/// Chat of `bub chat` and `bub run`, unless the user names another one.
pub(super) const DEFAULT_CHAT_ID: &str = "local";
/// First session of the default chat, as in the Python version.
pub(in crate::cli) const DEFAULT_SESSION: &str = "cli_session";
/// Session of the default chat in the first release.
pub(in crate::cli) const FORMER_SESSION: &str = "cli:local";

/// The current session of a chat. `,new` and `,resume` change it.
#[derive(Clone, Debug)]
pub(super) struct ChatSession {
    /// Chat within the channel.
    pub(super) chat_id: String,
    /// Id of the current session.
    pub(super) id: String,
    /// The session that `,new` or `,resume` selected last, as read from the tape of the chat's first session.
    recorded: String,
}

impl ChatSession {
    /// Selects the session from the command-line arguments.
    pub(super) async fn choose(framework: &Framework, args: ChatArgs) -> Result<Self> {
        let chat_id = args.chat_id;
        // `--session` and `--continue` select an exact session. Otherwise continue the session that `,new` or `,resume`
        // selected last.
        let selected = if args.continue_latest {
            terminal_sessions(framework).await?.into_iter().next()
        } else {
            args.session
        };
        let is_selected = selected.is_some();
        let id = selected.unwrap_or_else(|| match chat_id.as_str() {
            DEFAULT_CHAT_ID => DEFAULT_SESSION.to_owned(),
            chat_id => format!("{CHANNEL_NAME}:{chat_id}"),
        });
        let mut session = Self {
            chat_id,
            recorded: String::new(),
            id,
        };
        session.recorded = session.recorded_session(framework).await?;
        if !is_selected {
            session.id.clone_from(&session.recorded);
            // The selected session can be the first one of another chat, which has later sessions.
            session.recorded = session.recorded_session(framework).await?;
            session.id.clone_from(&session.recorded);
        }
        Ok(session)
    }

    /// Returns the session of a new chat with a unique id.
    pub(super) fn with_new_chat(&self) -> Self {
        let chat_id = format!("{}-{}", self.chat_id, timestamp());
        let id = format!("{CHANNEL_NAME}:{chat_id}");
        Self {
            chat_id,
            recorded: id.clone(),
            id,
        }
    }

    /// Returns the id of the chat's first session. The ids of its later sessions start with it.
    pub(super) fn base_id(&self) -> &str {
        base_session_id(&self.id)
    }

    /// Returns the tape name of the session.
    pub(super) fn tape_name(&self, framework: &Framework) -> TapeName {
        TapeName::for_session(framework.workspace_text(), &self.id)
    }

    /// Switches to another session of the chat.
    pub(super) fn switch_to(&mut self, id: &str) {
        (self.recorded, self.id) = (id.to_owned(), id.to_owned());
    }

    /// Returns whether `--session` or `--continue` selected a session other than the one that `,new` or `,resume` last
    /// recorded for this chat.
    pub(super) fn is_selected(&self) -> bool {
        self.id != self.recorded
    }

    /// Switches to the session that `,new` or `,resume` selected, if it changed.
    pub(super) async fn follow_switch(&mut self, framework: &Framework) -> Result<()> {
        let recorded = self.recorded_session(framework).await?;
        if recorded != self.recorded {
            self.switch_to(&recorded);
        }
        Ok(())
    }

    /// Reads which session `,new` or `,resume` selected last. The tape of the chat's first session records this.
    async fn recorded_session(&self, framework: &Framework) -> Result<String> {
        let Some(store) = framework.tape_store() else {
            return Ok(self.base_id().to_owned());
        };
        let name = TapeName::for_session(framework.workspace_text(), self.base_id());
        let summary = store.summary(&name).await.map_err(tape_error)?;
        let switched_to = summary.switched_to;
        Ok(switched_to.unwrap_or_else(|| self.base_id().to_owned()))
    }
}

/// If the default chat has no session yet, but its session of the first release has entries, says so and offers to
/// continue that session. Returns what the user typed if it is no answer: it is the first message of the chat.
pub(super) async fn offer_former_session(
    framework: &Framework,
    session: &mut ChatSession,
    can_ask: bool,
    first_line: Option<String>,
) -> Result<Option<String>> {
    let Some(store) = framework
        .tape_store()
        .filter(|_| session.id == DEFAULT_SESSION)
    else {
        return Ok(first_line);
    };
    let name = |id| TapeName::for_session(framework.workspace_text(), id);
    let current = store.summary(&name(DEFAULT_SESSION)).await;
    let former = store.summary(&name(FORMER_SESSION)).await;
    if current.map_err(tape_error)?.entries > 0 || former.map_err(tape_error)?.entries == 0 {
        return Ok(first_line);
    }
    notice!(
        "this chat has its own session, `{DEFAULT_SESSION}`\nsession `{FORMER_SESSION}`, which `bub run` uses, has entries"
    );
    let mut answer = String::new();
    // No question before a message of the command line: its answer could be another message.
    if can_ask && first_line.is_none() {
        let question = format!("Continue `{FORMER_SESSION}` in this chat? [y/N]");
        answer = prompt::prompt_line(&question, None).await?;
    }
    let typed = match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => {
            record_session_switch(&*store, &name(DEFAULT_SESSION), FORMER_SESSION).await?;
            session.switch_to(FORMER_SESSION);
            return Ok(None);
        }
        "" | "n" | "no" => None,
        _ => Some(answer),
    };
    notice!("to continue it later, run `bub chat --session {FORMER_SESSION}`");
    Ok(first_line.or(typed))
}

/// Returns an id for a new session of a chat, given the id of its first session.
pub(in crate::cli) fn new_session_id(base_id: &str) -> String {
    format!("{base_id}{SESSION_SEPARATOR}{}", timestamp())
}

fn timestamp() -> String {
    let digits = bub_tape::now_iso();
    let digits = digits.chars().filter(char::is_ascii_digit);
    digits.take(17).collect()
}

/// Returns the id of the first session of a chat, given the id of any of its sessions.
pub(super) fn base_session_id(id: &str) -> &str {
    id.split(SESSION_SEPARATOR).next().unwrap_or(id)
}

/// Returns the last message of a session and its answer. Long texts are shortened. Returns `None` if the session has no
/// message, or if its tape cannot be read.
pub(super) async fn last_exchange(
    framework: &Framework,
    session_id: &SessionId,
) -> Option<LastExchange> {
    let store = framework.tape_store()?;
    let name = TapeName::for_session(framework.workspace_text(), session_id);
    let newest = store.read(&name, EntryRange::ALL.newest_first());
    let mut newest = newest.take(MAX_ENTRIES_READ);
    let mut last = LastExchange::default();
    while let Some(Ok(entry)) = newest.next().await {
        let message = message_text(&entry.payload).filter(|_| entry.kind == EntryKind::Message);
        match message {
            Some(("assistant", text)) if last.answer.is_empty() => {
                last.answer = shorten(text, MAX_ANSWER_LINES);
            }
            Some(("user", text)) => {
                last.message = shorten(text, MAX_MESSAGE_LINES);
                return Some(last);
            }
            _ => {}
        }
    }
    None
}

/// Returns the first lines of a text. A `…` replaces the rest.
fn shorten(text: &str, max_lines: usize) -> String {
    let lines: Vec<&str> = text.trim().lines().collect();
    let shown = lines.get(..max_lines);
    shown.map_or_else(|| lines.join("\n"), |shown| shown.join("\n") + "\n…")
}

/// Returns the terminal sessions of this workspace, newest first.
pub(in crate::cli) async fn terminal_sessions(framework: &Framework) -> Result<Vec<String>> {
    let Some(store) = framework.tape_store() else {
        return Ok(Vec::new());
    };
    let mut sessions: Vec<(String, String)> = Vec::new();
    let names = store.list(TapeListFilter::Sessions).await;
    for name in names.map_err(tape_error)? {
        let summary = store.summary(&name).await.map_err(tape_error)?;
        let Some(session) = summary.session else {
            continue;
        };
        let is_terminal = match &session.channel {
            Some(channel) => channel == CHANNEL_NAME,
            None => session.session_id.starts_with(CHANNEL_NAME),
        };
        let date = summary.last_date.unwrap_or_default();
        if is_terminal && session.workspace.as_deref() == Some(framework.workspace_text()) {
            sessions.push((date, session.session_id));
        }
    }
    sessions.sort_by(|a, b| b.cmp(a));
    Ok(sessions.into_iter().map(|(_, id)| id).collect())
}
