//! The builtin commands, one file per command.

/// Prints a formatted line to stderr.
macro_rules! notice {
    ($($argument:tt)*) => {
        bub::prompt::print_stderr(&format!("{}\n", format_args!($($argument)*)))
    };
}

mod approve;
mod chat;
mod completions;
mod config;
mod dates;
mod debug;
mod doctor;
mod exit;
mod gateway;
mod hooks;
mod install;
mod interrupted;
mod listing;
mod local_model;
mod man;
mod migrate;
mod models;
mod onboard;
mod outbox;
mod pair;
mod picker;
mod plugin;
mod policy;
mod probe;
mod progress;
mod run;
mod sandbox;
mod skill;
mod status;
mod tape;
mod terminal_mode;
mod trust;
mod usage;

use std::sync::Arc;

use bub::{AppCommand, output, output::sanitize_line, prompt};
use bub_kernel::{Error, Framework, Plugin, Result, hooks::HookSet};
use bub_model::{LoginFactory, ModelClient, Models};
use bub_settings::{AnySetting, Section, Settings};
use bub_tape::TapeStore;

pub(crate) use self::probe::discard_handler;
use self::{approve::ApprovalHook, chat::ChatHooks};

/// Name of the plugin [`CliPlugin`].
pub(crate) const CLI: &str = "cli";

/// Name of the program in completion scripts and man pages.
const PROGRAM_NAME: &str = "bub";

/// Description of `bub run`.
const RUN_ABOUT: &str = "Send one message and print the answer; short: bub \"MESSAGE\"";

/// Text that `bub` prints if no command is given.
pub(crate) const QUICK_START: &str = include_str!("cli/quick_start.txt");

/// Returns the models that are available with these settings and logins.
fn models(settings: &Arc<Settings>, logins: &[LoginFactory]) -> Result<Models> {
    let client = Arc::new(ModelClient::from_settings(settings));
    Models::new(Arc::clone(settings), client, logins)
        .map_err(|error| Error::config(error.to_string()))
}

/// Returns the tape store that a plugin provides. Works only inside [`Framework::run_scoped`].
fn tape_store(framework: &Framework) -> Result<Arc<dyn TapeStore>> {
    framework
        .tape_store()
        .ok_or_else(|| Error::config("no tape store: no plugin provides one; see `bub hooks`"))
}

/// Parses an argument that must not be blank.
fn parse_non_blank(text: &str) -> Result<String, &'static str> {
    if text.trim().is_empty() {
        return Err("the value must not be empty");
    }
    Ok(text.to_owned())
}

/// Returns the settings of `bub run`.
pub(crate) fn run_section() -> Section {
    static RUN: &[&dyn AnySetting] = &[&run::RUN_HEADER];
    Section::new("run", RUN)
}

/// Returns all commands in the order of the help.
pub(crate) fn commands(hooks: &CliHooks) -> Vec<AppCommand> {
    let chat_hooks = Arc::clone(&hooks.chat);
    let mut commands = vec![
        AppCommand::with_args("run", RUN_ABOUT, run::run)
            .asks_for_trust()
            .needs_home()
            .sets_settings(run::setting_flags),
        AppCommand::with_args(
            "chat",
            "Chat with the agent in the terminal or through a pipe",
            move |context, args| chat::run(context, args, Arc::clone(&chat_hooks)),
        )
        .asks_for_trust()
        .needs_home(),
        AppCommand::with_args(
            "gateway",
            "Run the gateway: receive messages and deliver replies",
            gateway::run,
        )
        .needs_home()
        .multi_threaded(),
        AppCommand::with_args(
            "status",
            "Show gateway status: channels, queues, and undelivered replies",
            status::run,
        ),
        AppCommand::with_args(
            "outbox",
            "List, retry, or drop undelivered replies",
            outbox::run,
        ),
        AppCommand::with_args("pair", "Grant a user access with a pairing code", pair::run),
        bub_codex::command(),
        AppCommand::with_args(
            "models",
            "List available models and show which one is used",
            models::run,
        ),
        AppCommand::with_args(
            "onboard",
            "Set up a model, API keys, and channels",
            onboard::run,
        )
        .needs_home()
        .allow_invalid_settings(),
        AppCommand::with_args("config", "Show and change settings", config::run)
            .allow_invalid_settings(),
        AppCommand::with_args(
            "doctor",
            "Check the installation and suggest fixes",
            doctor::run,
        )
        .allow_invalid_settings()
        .manages_trust(),
        migrate::command(),
        AppCommand::with_args(
            "hooks",
            "Show hooks and the plugins that implement them",
            hooks::run,
        ),
        AppCommand::with_args(
            "tape",
            "List, show, search, fork, export, and repair tapes",
            tape::run,
        ),
        AppCommand::with_args(
            "usage",
            "Show token usage and cost by session, model, or day",
            usage::run,
        ),
        AppCommand::with_args("debug", "Show what the model would get", debug::run),
        AppCommand::with_args("skill", "List, show, check, and create skills", skill::run),
        AppCommand::with_args(
            "policy",
            "Show the tool policy and explain decisions",
            policy::run,
        ),
        AppCommand::with_args(
            "trust",
            "Trust a workspace, and list and remove trusted workspaces",
            trust::run,
        )
        .allow_invalid_settings()
        .manages_trust(),
        AppCommand::with_args(
            "sandbox",
            "Run a command in the sandbox of the agent's commands",
            sandbox::run,
        ),
        AppCommand::with_args(
            "completions",
            "Print a shell completion script",
            completions::run,
        )
        .allow_invalid_settings(),
        AppCommand::with_args("man", "Write man pages to a directory", man::run)
            .allow_invalid_settings(),
    ];
    commands.extend(install::commands());
    commands.extend(bub_replay::commands(&hooks.replay));
    commands
}

/// The hooks of the plugin `cli`. They ask users for approvals, and the chat observes its turns through them.
#[derive(Default)]
pub(crate) struct CliHooks {
    approvals: Arc<ApprovalHook>,
    chat: Arc<ChatHooks>,
    /// The replay that `bub replay` runs and the plugin `replay` answers.
    pub(crate) replay: bub_replay::ActiveReplay,
}

/// The plugin `cli`. It shares its [`CliHooks`] with the commands.
pub(crate) struct CliPlugin(pub(crate) Arc<CliHooks>);

impl Plugin for CliPlugin {
    fn register(self: Arc<Self>, hooks: &mut HookSet) {
        Arc::clone(&self.0.approvals).register(hooks);
        Arc::clone(&self.0.chat).register(hooks);
    }
}
