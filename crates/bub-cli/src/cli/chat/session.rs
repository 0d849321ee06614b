//! The session of a chat: selects it at the start and follows `,new` and `,resume`.

use bub_kernel::{Framework, Result, tape_error};
use bub_tape::{TapeListFilter, TapeName};
use bub_terminal::channel::CHANNEL_NAME;

use super::ChatArgs;

/// Separates the id of a chat's first session from the timestamp in the ids of its later sessions.
const SESSION_SEPARATOR: char = '~';

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
        let id = selected.unwrap_or_else(|| format!("{CHANNEL_NAME}:{chat_id}"));
        let mut session = Self {
            chat_id,
            recorded: String::new(),
            id,
        };
        session.recorded = session.recorded_session(framework).await?;
        if !is_selected {
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
