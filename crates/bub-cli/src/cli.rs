//! The builtin commands, one file per command.

mod approve;
mod chat;
mod completions;
mod config;
mod doctor;
mod exit;
mod gateway;
mod hooks;
mod login;
mod man;
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

use bub::{AppCommand, output, output::sanitize_line, prompt};
use bub_kernel::{Plugin, hooks::HookSet};
use bub_model::{HttpOptions, ModelClient};
use bub_settings::Settings;

use self::{approve::ApprovalHook, chat::ChatHooks};

/// The name of the plugin [`CliHooks`].
pub(crate) const CLI: &str = "cli";

/// Name of the program in completion scripts and man pages.
const PROGRAM_NAME: &str = "bub";

/// Text that `bub` prints without a command.
pub(crate) const QUICK_START: &str = "\
bub is an agent runtime. Get started:

  bub onboard         Set up a model and channels
  bub run \"hello\"     Send one message
  bub chat            Start a chat
  bub models          List available models
  bub tape list       List sessions
  bub doctor          Check the installation
  bub --help          Show all commands
";

/// Returns the HTTP client of a command. It opens no connection before the first request.
fn model_client(settings: &Settings) -> ModelClient {
    let options = HttpOptions::from_environment(settings.environment());
    ModelClient::new(options, settings.redactor().clone())
}

/// Returns all commands in the order of the help.
pub(crate) fn commands(hooks: &CliHooks) -> Vec<AppCommand> {
    let mut commands = vec![
        run::command(),
        chat::command(&hooks.chat),
        gateway::command(),
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
        man::command(),
        plugin::command(),
    ];
    commands.extend(plugin::alias_commands());
    commands
}

/// The plugin `cli`, through which the commands take part in turns.
#[derive(Default)]
pub(crate) struct CliHooks {
    approvals: Arc<ApprovalHook>,
    chat: Arc<ChatHooks>,
}

/// Registers the shared [`CliHooks`].
pub(crate) struct CliPlugin(pub(crate) Arc<CliHooks>);

impl Plugin for CliPlugin {
    fn register(self: Arc<Self>, hooks: &mut HookSet) {
        Arc::clone(&self.0.approvals).register(hooks);
        Arc::clone(&self.0.chat).register(hooks);
    }
}
