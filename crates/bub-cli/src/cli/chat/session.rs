//! Which session a chat is about.

use bub_kernel::{Framework, Result, tape_error};
use bub_tape::{TapeListFilter, TapeName};
use bub_terminal::channel::CHANNEL_NAME;
use clap::ArgMatches;

/// What separates the id of a chat from the stamps of its later sessions.
const SESSION_SEPARATOR: char = '~';

/// The session of a chat. `,new` and `,resume` change it.
#[derive(Clone, Debug)]
pub(super) struct ChatSession {
    /// The chat within the channel.
    pub(super) chat_id: String,
    /// The session in use.
    pub(super) id: String,
    /// What the tape of the chat's first session said when this was last looked at.
    switched: String,
}

impl ChatSession {
    /// The session that the arguments mean.
    pub(super) async fn choose(framework: &Framework, matches: &ArgMatches) -> Result<Self> {
        let text = |name: &str| matches.get_one::<String>(name).cloned();
        let chat_id = text("chat-id").unwrap_or_default();
        let named = text("session");
        // One that is named, or was last used, is meant as it is; of a chat, it is the one that `,new` or `,resume` chose.
        let wanted = match named {
            None if matches.get_flag("continue") => last(framework).await?,
            named => named,
        };
        let is_chosen = wanted.is_some();
        let id = wanted.unwrap_or_else(|| format!("{CHANNEL_NAME}:{chat_id}"));
        let mut session = Self {
            chat_id,
            switched: String::new(),
            id,
        };
        session.switched = session.in_use(framework).await?;
        if !is_chosen {
            session.id.clone_from(&session.switched);
        }
        Ok(session)
    }

    /// A session of another chat, which nobody has used.
    pub(super) fn another(&self) -> Self {
        let stamp: String = bub_tape::now_iso()
            .chars()
            .filter(char::is_ascii_digit)
            .take(17)
            .collect();
        let chat_id = format!("{}-{stamp}", self.chat_id);
        let id = format!("{CHANNEL_NAME}:{chat_id}");
        Self {
            chat_id,
            switched: id.clone(),
            id,
        }
    }

    /// The id that all sessions of the chat have in common.
    pub(super) fn chat(&self) -> &str {
        chat_of(&self.id)
    }

    /// The tape.
    pub(super) fn tape(&self, framework: &Framework) -> TapeName {
        TapeName::for_session(framework.workspace_text(), &self.id)
    }

    /// Goes to another session of the chat.
    pub(super) fn go(&mut self, id: &str) {
        (self.switched, self.id) = (id.to_owned(), id.to_owned());
    }

    /// Whether it is another one than the chat's tape says.
    pub(super) fn is_chosen(&self) -> bool {
        self.id != self.switched
    }

    /// Goes where `,new` or `,resume` led.
    pub(super) async fn follow(&mut self, framework: &Framework) -> Result<()> {
        let now = self.in_use(framework).await?;
        if now != self.switched {
            self.go(&now);
        }
        Ok(())
    }

    /// The session that `,new` or `,resume` last chose for the chat, as its tape says.
    async fn in_use(&self, framework: &Framework) -> Result<String> {
        let Some(store) = framework.tape_store() else {
            return Ok(self.chat().to_owned());
        };
        let name = TapeName::for_session(framework.workspace_text(), self.chat());
        let summary = store.summary(&name).await.map_err(tape_error)?;
        Ok(summary
            .switched_to
            .unwrap_or_else(|| self.chat().to_owned()))
    }
}

/// The id that all sessions of the chat of this one have in common.
pub(super) fn chat_of(id: &str) -> &str {
    id.split_once(SESSION_SEPARATOR)
        .map_or(id, |(chat, _)| chat)
}

/// The session of this workspace that was last used at a terminal.
async fn last(framework: &Framework) -> Result<Option<String>> {
    Ok(all(framework).await?.into_iter().next())
}

/// The sessions of this workspace at terminals, the latest first.
pub(super) async fn all(framework: &Framework) -> Result<Vec<String>> {
    let Some(store) = framework.tape_store() else {
        return Ok(Vec::new());
    };
    let mut all: Vec<(String, String)> = Vec::new();
    for name in store
        .list(TapeListFilter::Sessions)
        .await
        .map_err(tape_error)?
    {
        let summary = store.summary(&name).await.map_err(tape_error)?;
        let Some(session) = summary.session else {
            continue;
        };
        let is_own = session.channel.as_deref().map_or_else(
            || session.session_id.starts_with(CHANNEL_NAME),
            |it| it == CHANNEL_NAME,
        );
        let date = summary.last_date.unwrap_or_default();
        if is_own && session.workspace.as_deref() == Some(framework.workspace_text()) {
            all.push((date, session.session_id));
        }
    }
    all.sort_by(|one, other| other.cmp(one));
    Ok(all.into_iter().map(|(_, id)| id).collect())
}
