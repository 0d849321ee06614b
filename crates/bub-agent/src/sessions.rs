//! Several sessions in one chat: which one is in use.
//!
//! A chat's first session has the chat's own id; later ones have that id, a tilde and a stamp. Which of them is in
//! use is an event on the first one's tape, so that the index knows it.

use bub_kernel::{Framework, Result, SessionId, tape_error};
use bub_tape::TapeName;

/// The event on the tape of a chat's first session that names the session in use.
pub(crate) const SESSION_SWITCH_EVENT: &str = "session_switch";

const SESSION_SEPARATOR: char = '~';

/// The id that all sessions of a chat have in common.
pub(crate) fn chat_id_of(session_id: &str) -> &str {
    session_id
        .split_once(SESSION_SEPARATOR)
        .map_or(session_id, |(chat, _)| chat)
}

/// An id for one more session of the same chat.
pub(crate) fn fresh_id(session_id: &str) -> SessionId {
    let stamp = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%S%3f");
    SessionId::from(format!(
        "{}{SESSION_SEPARATOR}{stamp}",
        chat_id_of(session_id)
    ))
}

/// The session that is in use in the chat of that id.
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
