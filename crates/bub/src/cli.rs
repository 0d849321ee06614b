//! The builtin commands of the command line, one file each.

mod approve;
mod ask;
mod chat;
mod completions;
mod config;
mod doctor;
mod gateway;
mod hooks;
mod login;
mod models;
pub(crate) mod onboard;
mod outbox;
mod output;
mod pair;
mod plugin;
mod policy;
mod probe;
mod run;
mod skill;
mod status;
mod tape;
mod usage;

pub(crate) use approve::{InChannel, Terminal};
pub(crate) use ask::InChat;
use std::sync::Arc;

pub(crate) use ask::is_possible as can_ask;
use bub_kernel::{CliApp, Error, Framework, Result};
use bub_model::{HttpOptions, ModelClient};
use bub_settings::Settings;
pub(crate) use chat::Chat;
pub(crate) use output::{harmless, one_line, print};

/// The HTTP client of a command. Costs nothing until the first request.
fn client(settings: &Settings) -> ModelClient {
    let options = HttpOptions::from_environment(settings.environment());
    ModelClient::new(options, settings.redactor().clone())
}

/// The settings of the program.
fn settings(framework: &Framework) -> Result<Arc<Settings>> {
    framework
        .service::<Settings>()
        .ok_or_else(|| Error::config("the program has no settings as a service"))
}

/// Registers the builtin commands, in the order in which help lists them.
#[derive(Default)]
pub(crate) struct Commands {
    flaw: run::Flaw,
    pub(crate) in_channel: Arc<InChannel>,
    pub(crate) chat: Arc<Chat>,
}

#[bub_macros::hooks(crate = bub_kernel)]
impl Commands {
    fn register_cli_commands(&self, app: &CliApp) {
        app.add(run::command(&self.flaw));
        app.add(chat::command(&self.chat, &self.in_channel));
        app.add(gateway::command(&self.in_channel));
        app.add(status::command());
        app.add(outbox::command());
        app.add(pair::command());
        app.add(login::command());
        app.add(models::command());
        app.add(onboard::command());
        app.add(config::command());
        app.add(doctor::command());
        app.add(hooks::command());
        app.add(tape::command());
        app.add(usage::command());
        app.add(skill::command());
        app.add(policy::command());
        app.add(completions::command());
        app.add(completions::man());
        app.add(plugin::command());
        for alias in plugin::aliases() {
            app.add(alias);
        }
    }

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
