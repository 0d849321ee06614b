//! The answer when no model is configured: honest, and of use.

use bub_kernel::{ModelStream, Prompt};

use crate::prompt::COMMAND_PREFIX;

/// Says that there is no model, and what to do about it.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfflineGuide;

impl OfflineGuide {
    /// The guide's answer to any prompt.
    pub fn answer(self, prompt: &Prompt) -> ModelStream {
        let is_command = prompt.as_text().is_some_and(|text| text.starts_with(COMMAND_PREFIX));
        ModelStream::text(if is_command { COMMANDS } else { GUIDE })
    }
}

const GUIDE: &str = "\
No model is configured, so nobody has read your message; it is on the session's tape all the same.

This version of bub runs the whole turn (session, state, prompt, model stage, rendering, delivery) but brings no \
model of its own yet. What works today:
  - a plugin that implements `run_model` or `run_model_stream` answers in place of this text: see examples/
  - `bub hooks` shows which plugin implements which stage
  - `bub tape list` and `bub tape show` show what was recorded";

const COMMANDS: &str = "\
Commands that start with a comma are not available in this version, so nothing was run.";
