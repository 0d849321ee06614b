//! Offers to finish a turn whose process died.

use bub::{output, prompt};
use bub_kernel::{Framework, InterruptedTurn, Result, SessionId};

/// The message that finishes an interrupted turn. The model sees what the turn had done.
pub(super) const CONTINUE_MESSAGE: &str = "Continue the interrupted turn.";

/// Maximum characters of the prompt and of the partial answer in a question.
const MAX_EXCERPT_CHARS: usize = 200;

/// Asks the user at the terminal whether to finish the last turn of a session, if it was interrupted. Without a
/// terminal, prints how to finish it. If the turn `resumes` anyway, only says so. Returns whether the user agrees.
pub(super) async fn offer_to_finish(
    framework: &Framework,
    session_id: &SessionId,
    resumes: bool,
) -> Result<bool> {
    let Some(turn) = framework.interrupted_turn(session_id).await? else {
        return Ok(false);
    };
    let redactor = framework.settings().redactor();
    let description = describe(&turn, session_id);
    notice!("{}", output::sanitize(&redactor.redact(&description)));
    if resumes {
        notice!("it continues now");
        return Ok(false);
    }
    if prompt::has_terminal() {
        return prompt::confirm("Finish it now?", false).await;
    }
    notice!("to finish it, run `bub run --session-id '{session_id}' '{CONTINUE_MESSAGE}'`");
    Ok(false)
}

fn describe(turn: &InterruptedTurn, session_id: &SessionId) -> String {
    let mut lines = vec![format!(
        "the last turn of session `{session_id}` was interrupted because bub was stopped"
    )];
    // The lines about channel and date come before the text of the user.
    let prompt = turn.prompt.rsplit_once("---\n");
    let prompt = prompt.map_or(turn.prompt.as_str(), |(_, text)| text);
    for (label, text) in [("message", prompt), ("answer so far", &turn.partial_answer)] {
        let text = excerpt(text);
        if !text.is_empty() {
            lines.push(format!("  {label}: {text}"));
        }
    }
    for (label, tools) in [
        ("outcome unknown of", &turn.open_tools),
        (
            "not run, because it waited for an answer",
            &turn.waiting_tools,
        ),
    ] {
        if !tools.is_empty() {
            lines.push(format!("  {label}: {}", tools.join(", ")));
        }
    }
    lines.join("\n")
}

/// Returns the start of a text in one line.
fn excerpt(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(MAX_EXCERPT_CHARS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
