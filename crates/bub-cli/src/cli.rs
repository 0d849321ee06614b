//! The builtin commands of the command line, one file each.

mod approve;
mod chat;
mod completions;
mod config;
mod doctor;
mod gateway;
mod hooks;
mod login;
mod models;
mod onboard;
mod outbox;
mod pair;
mod plugin;
mod policy;
mod probe;
mod run;
mod skill;
mod status;
mod tape;
mod usage;

use std::sync::Arc;

use bub::{AppCommand, ask, output, output::one_line};
use bub_kernel::{Error, Plugin, hooks::HookSet};
use bub_model::{HttpOptions, ModelClient};
use bub_settings::Settings;

use self::{
    approve::{InChannel, Terminal},
    chat::Chat,
};

/// The name of the plugin [`CliHooks`].
pub(crate) const CLI: &str = "cli";

/// What `bub` without a command prints.
pub(crate) const NEXT_STEPS: &str = "\
bub is a hook-first agent runtime. What to do next:

  bub onboard         set up a model, a key, channels
  bub run \"hello\"     send one message and print the reply
  bub chat            talk with the agent at this terminal
  bub models          list the models that can be used now
  bub tape list       list the sessions that were recorded
  bub doctor          check that everything works
  bub --help          list all commands and options
";

/// The HTTP client of a command. Costs nothing until the first request.
fn client(settings: &Settings) -> ModelClient {
    let options = HttpOptions::from_environment(settings.environment());
    ModelClient::new(options, settings.redactor().clone())
}

/// The commands, in the order in which help lists them.
pub(crate) fn commands(hooks: &CliHooks) -> Vec<AppCommand> {
    let mut commands = vec![
        run::command(&hooks.failures.flaw),
        chat::command(&hooks.chat, &hooks.in_channel),
        gateway::command(&hooks.in_channel),
        status::command(),
        outbox::command(),
        pair::command(),
        login::command(),
        models::command(),
        onboard::command(),
        config::command(),
        doctor::command(),
        hooks::command(),
        tape::command(),
        usage::command(),
        skill::command(),
        policy::command(),
        completions::command(),
        completions::man(),
        plugin::command(),
    ];
    commands.extend(plugin::aliases());
    commands
}

/// The plugin `cli`: how the commands take part in turns.
#[derive(Default)]
pub(crate) struct CliHooks {
    failures: Arc<Failures>,
    in_channel: Arc<InChannel>,
    terminal: Arc<Terminal>,
    chat: Arc<Chat>,
}

/// Keeps what failed in a turn, for `bub run`.
#[derive(Default)]
struct Failures {
    flaw: run::Flaw,
}

#[bub_macros::hooks(crate = bub_kernel)]
impl Failures {
    fn save_state(&self, partial_output: &str, error: Option<&Error>) {
        self.flaw
            .note_partial(if error.is_some() { partial_output } else { "" });
    }

    fn on_error(&self, stage: &str, error: &Error) {
        if stage == "run_model" {
            self.flaw.note(error);
        }
    }
}

/// The registration of the shared [`CliHooks`].
pub(crate) struct CliPlugin(pub(crate) Arc<CliHooks>);

impl Plugin for CliPlugin {
    fn register(self: Arc<Self>, hooks: &mut HookSet) {
        Arc::clone(&self.0.failures).register(hooks);
        Arc::clone(&self.0.in_channel).register(hooks);
        Arc::clone(&self.0.terminal).register(hooks);
        // After the terminal: the chat asks in its own way.
        Arc::clone(&self.0.chat).register(hooks);
    }
}
