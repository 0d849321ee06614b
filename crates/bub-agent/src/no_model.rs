//! The answer that explains what to do when no model is configured.

use bub_kernel::{ModelStream, Turn};
use bub_model::ChoiceReason;

/// Returns the setup guide as the answer, and marks the turn as one that no model answered.
pub(crate) fn no_model_answer(turn: &Turn, reason: &ChoiceReason) -> ModelStream {
    turn.mark_no_model();
    ModelStream::from_text(match reason {
        ChoiceReason::NotAdopted(..) => {
            let guide = "\n\nTo get an answer, do one of";
            let found = format!("\n\nbub {reason}.{guide}");
            NO_MODEL_GUIDE.replacen(guide, &found, 1)
        }
        _ => NO_MODEL_GUIDE.to_owned(),
    })
}

/// Explains how to set up a model.
const NO_MODEL_GUIDE: &str = "\
No model is configured, so your message was not answered. It was saved to the session's tape.

To get an answer, do one of the following and send the message again:
  - Run `bub onboard` to choose a model and enter an API key.
  - Set a provider's API key in the environment; `bub models` lists the variables.
  - Start a local model server; `bub models` shows it and how to use it.
  - Set BUB_MODEL=provider:model.

Commands, tools, and tapes work without a model. Try `bub demo` or `bub tape list`.";
