//! The answers when no model is configured: honest, and of use.

/// Says that there is no model, and what to do about it.
pub(crate) const GUIDE: &str = "\
No model is configured, so nobody has read your message; it is on the session's tape all the same.

To get an answer, do one of these and send it again:
  - set the key of a provider in the environment: `bub models` names the variables
  - start a model server on this computer: on its usual port it is found by itself
  - name the model you want with BUB_MODEL=provider:model

Everything else works: `bub tape list` shows what was recorded, `bub hooks` who does what in a turn.";

/// Says that a command was not run.
pub(crate) const COMMANDS: &str = "\
Commands that start with a comma are not available in this version, so nothing was run.";
