//! The current session of a chat.
//!
//! The first session of a chat has the id of the chat, such as `cli:local`. The id of a later session is the id of the
//! chat, a tilde and a timestamp. An event on the tape of the first session names the current session. The tape index
//! stores the latest such event.

use bub_kernel::{Framework, Result, SessionId, tape_error};
use bub_tape::{Entry, TapeName, TapeStore};
use serde_json::json;

/// The event on the tape of a chat's first session that names the current session.
const SESSION_SWITCH_EVENT: &str = "session_switch";

/// Separates the id of the chat from the timestamp.
pub(crate) const SESSION_SEPARATOR: char = '~';

/// Returns the id of the chat that a session belongs to. All session ids of a chat start with it.
pub(crate) fn session_chat_id(session_id: &str) -> &str {
    session_id
        .split_once(SESSION_SEPARATOR)
        .map_or(session_id, |(chat, _)| chat)
}

/// Returns an id for a new session in the chat of `session_id`.
pub(crate) fn new_session_id(session_id: &str) -> SessionId {
    let stamp = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%S%3f");
    SessionId::from(format!(
        "{}{SESSION_SEPARATOR}{stamp}",
        session_chat_id(session_id)
    ))
}

/// Records on the tape of a chat's first session, `chat`, that `target` is the current session of the chat.
///
/// # Errors
///
/// Fails if the tape cannot be written.
pub async fn record_session_switch(
    store: &dyn TapeStore,
    chat: &TapeName,
    target: &str,
) -> Result<()> {
    let data = json!({"session_id": target});
    let event = Entry::event(SESSION_SWITCH_EVENT, Some(data)).exclude_from_context();
    let appended = store.append(chat, vec![event]).await;
    appended.map(drop).map_err(tape_error)
}

/// Returns the id of the current session of a chat. `session_id` is the id of the chat's first session. The id of a
/// later session is returned unchanged.
pub(crate) async fn current_session(framework: &Framework, session_id: String) -> Result<String> {
    let Some(store) = framework
        .tape_store()
        .filter(|_| !session_id.contains(SESSION_SEPARATOR))
    else {
        return Ok(session_id);
    };
    let name = TapeName::for_session(framework.workspace_text(), &session_id);
    let summary = store.summary(&name).await.map_err(tape_error)?;
    Ok(summary.switched_to.unwrap_or(session_id))
}
