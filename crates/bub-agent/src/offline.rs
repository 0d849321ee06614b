//! The answers when no model is configured: honest, and of use.

use bub_kernel::{ModelStream, Turn};

/// The answer without a model.
pub(crate) fn guide(turn: &Turn) -> ModelStream {
    turn.set_no_model();
    ModelStream::text(GUIDE)
}

/// Says that there is no model, and what to do about it.
const GUIDE: &str = "\
No model is configured, so nobody has read your message; it is on the session's tape all the same.

To get an answer, do one of these and send it again:
  - `bub onboard` asks for a model and its key, and tries them
  - set the key of a provider in the environment: `bub models` names the variables
  - start a model server on this computer: on its usual port it is found by itself
  - name the model you want with BUB_MODEL=provider:model

Everything else works: `bub run ',help'` lists the commands, `bub tape list` shows what was recorded.";
