//! `bub onboard`: from nothing to a working agent. Asks for what is missing, tries it, and only then writes.

mod channels;
pub(super) mod model;
mod plugins;

use std::{process::ExitCode, sync::Arc};

use bub::{AppCommand, CommandContext};
use bub_kernel::{Error, Framework, Result};
use bub_settings::{ConfigFile, Settings};
use clap::{Arg, ArgAction, Command};

use super::{config, output, prompt};

/// The command failed, or was left.
const EXIT_FAILURE: u8 = 1;
/// Asks first whether to begin at all: for `bub` alone.
const OFFER_FLAG: &str = "offer";

pub(super) fn command() -> AppCommand {
    let flag = |name: &'static str, help| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    let option = |name: &'static str, value: &'static str, help| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let command = Command::new("onboard")
        .about("Set up a model, API keys, and channels")
        .long_about(
            "Set up a model, API keys, and channels. Existing values are offered as defaults. Settings are tested before \
             they are saved.",
        )
        .arg(option("model", "PROVIDER:MODEL", "Model to use"))
        .arg(option("api-base", "URL", "Base URL of the provider"))
        .arg(flag("api-key-stdin", "Read the API key from stdin"))
        .arg(flag("no-test", "Save without testing"))
        .arg(flag("yes", "Do not prompt"))
        .arg(flag(OFFER_FLAG, "Offer the setup if no model is configured").hide(true));
    AppCommand::new(command, |context| async move {
        run(&context).await.or_else(|error| {
            prompt::print_stderr(&if prompt::is_interruption(&error) {
                format!("{}\n", error.message())
            } else {
                let message = context.settings.redactor().redact(error.message());
                format!("Onboarding failed: {}\n", output::one_line(&message))
            });
            Ok(ExitCode::from(EXIT_FAILURE))
        })
    })
    .runs_with_invalid_settings()
}

/// What is set up: the file with the answers so far, and who is asked.
struct Onboarding<'a> {
    framework: &'a Framework,
    settings: Arc<Settings>,
    file: ConfigFile,
    /// The provider there was before: what stands in the file for all providers is meant for it.
    owner: Option<String>,
    /// Whether there is somebody to ask.
    asks: bool,
    /// Whether things are tried.
    tries: bool,
}

async fn run(context: &CommandContext) -> Result<ExitCode> {
    let (framework, matches) = (&context.framework, &context.matches);
    let settings = Arc::clone(&context.settings);
    if matches.get_flag(OFFER_FLAG) && !is_wanted(&settings).await? {
        return output::print(super::QUICK_START);
    }
    let asks = !matches.get_flag("yes");
    if asks && !prompt::has_terminal() {
        return Err(Error::config(
            "there is no terminal to ask at; use `--yes` with `--model` and `--api-key-stdin`",
        ));
    }
    let key = if matches.get_flag("api-key-stdin") {
        Some(prompt::read_stdin()?)
    } else {
        None
    };
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let given = model::ModelArgs {
        model: text("model"),
        base: text("api-base"),
        key,
    };
    let tries = !matches.get_flag("no-test");
    let file = config::open(&settings)?;
    let owner = config::plain_owner(&settings, &file);
    let mut onboarding = Onboarding {
        framework,
        settings,
        file,
        owner,
        asks,
        tries,
    };
    if asks {
        prompt::print_stderr(&format!(
            "bub v{}: let us set up your agent.\nEnter takes what stands in brackets; Ctrl-C leaves everything as it was.\n\n",
            env!("CARGO_PKG_VERSION")
        ));
    }
    model::ask(&mut onboarding, given).await?;
    if asks {
        channels::ask(&mut onboarding).await?;
        plugins::ask(&mut onboarding).await?;
    }
    let path = onboarding.settings.config_file().to_owned();
    if !onboarding.file.is_changed() {
        config::report_problems(
            &onboarding.settings,
            &*onboarding.revised()?,
            &onboarding.file,
        );
        return output::print(&format!("Nothing to change in {}\n", path.display()));
    }
    let revised = config::save_repaired(&onboarding.settings, &mut onboarding.file)?;
    if asks {
        prompt::print_stderr("\n");
    }
    config::warn_overridden(&revised, "model");
    output::print(&format!(
        "Saved config to {}\nNext: bub chat\n",
        path.display()
    ))
}

/// Whether there is no model yet, and whoever sits there wants one.
async fn is_wanted(settings: &Arc<Settings>) -> Result<bool> {
    let models = bub_model::Models::new(Arc::clone(settings), Arc::new(super::client(settings)));
    let choice = match &models {
        Ok(models) => models.choose().await.ok(),
        Err(_) => None,
    };
    let has_none = choice.is_some_and(|choice| choice.model.is_none());
    Ok(has_none && prompt::confirm("No model is configured yet. Set one up now?", true).await?)
}

impl Onboarding<'_> {
    /// Sets one value from text, as `bub config set` does.
    fn set(&mut self, path: &str, text: &str) -> Result<()> {
        config::set_value(
            &self.settings,
            &mut self.file,
            self.owner.as_deref(),
            path,
            text,
        )
    }

    /// Another provider gets neither the key nor the address of the one before; they stay with that one.
    fn keep_apart(&mut self, provider: &str) -> Result<()> {
        let Some(owner) = self.owner.clone().filter(|owner| owner != provider) else {
            return Ok(());
        };
        config::PER_PROVIDER_SETTINGS
            .into_iter()
            .try_for_each(|whole| config::scope_to_provider(&mut self.file, Some(&owner), whole))
    }

    /// What would be in force with the answers so far.
    fn revised(&self) -> Result<Arc<Settings>> {
        config::checked(&self.settings, &self.file).map(Arc::new)
    }

    /// Takes back what was answered since then.
    fn back_to(&mut self, text: String) {
        self.file.replace(text);
    }
}
