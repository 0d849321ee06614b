//! `bub onboard`: sets up a model, API keys and channels. Tests the settings before it saves them.

mod channels;
pub(super) mod model;
mod plugins;

use std::{process::ExitCode, sync::Arc};

use bub::{AppCommand, CommandContext};
use bub_kernel::{Error, Framework, Result};
use bub_settings::{ConfigFile, Settings};
use clap::{Arg, ArgAction, Command};

use super::{config, output, prompt};

/// Exit code if the setup failed or the user quit.
const EXIT_FAILURE: u8 = 1;
/// Hidden flag of `bub` without a command: asks whether to start the setup.
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
                format!("Onboarding failed: {}\n", output::sanitize_line(&message))
            });
            Ok(ExitCode::from(EXIT_FAILURE))
        })
    })
    .allow_invalid_settings()
}

/// State of the setup: the config file with the answers so far.
struct Onboarding<'a> {
    framework: &'a Framework,
    settings: Arc<Settings>,
    file: ConfigFile,
    /// Provider before the setup. Unscoped keys and base URLs in the file belong to it.
    owner: Option<String>,
    /// Whether to prompt the user.
    can_ask: bool,
    /// Whether to test settings before saving.
    runs_tests: bool,
}

async fn run(context: &CommandContext) -> Result<ExitCode> {
    let (framework, matches) = (&context.framework, &context.matches);
    let settings = Arc::clone(&context.settings);
    if matches.get_flag(OFFER_FLAG) && !offer_setup(&settings).await? {
        return output::print(super::QUICK_START);
    }
    let can_ask = !matches.get_flag("yes");
    if can_ask && !prompt::has_terminal() {
        return Err(Error::config(
            "cannot prompt: stdin is not a terminal; use `--yes` with `--model` and `--api-key-stdin`",
        ));
    }
    let key = if matches.get_flag("api-key-stdin") {
        Some(prompt::read_stdin()?)
    } else {
        None
    };
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let model_args = model::ModelArgs {
        model: text("model"),
        base: text("api-base"),
        key,
    };
    let runs_tests = !matches.get_flag("no-test");
    let file = config::open_file(&settings)?;
    let owner = config::unscoped_owner(&settings, &file);
    let mut onboarding = Onboarding {
        framework,
        settings,
        file,
        owner,
        can_ask,
        runs_tests,
    };
    if can_ask {
        prompt::print_stderr(&format!(
            "bub v{}: set up your agent.\nPress Enter to accept the value in brackets. Press Ctrl-C to quit without saving.\n\n",
            env!("CARGO_PKG_VERSION")
        ));
    }
    model::set_up_model(&mut onboarding, model_args).await?;
    if can_ask {
        channels::set_up_channels(&mut onboarding).await?;
        plugins::set_up_plugins(&mut onboarding).await?;
    }
    let path = onboarding.settings.config_file().to_owned();
    if !onboarding.file.is_changed() {
        config::report_problems(
            &onboarding.settings,
            &*onboarding.revised_settings()?,
            &onboarding.file,
        );
        return output::print(&format!("No changes to {}\n", path.display()));
    }
    let revised = config::save_and_report(&onboarding.settings, &mut onboarding.file)?;
    if can_ask {
        prompt::print_stderr("\n");
    }
    config::warn_overridden(&revised, "model");
    output::print(&format!(
        "Saved config to {}\nNext: bub chat\n",
        path.display()
    ))
}

/// Offers the setup if no model is configured, and returns whether the user accepted.
async fn offer_setup(settings: &Arc<Settings>) -> Result<bool> {
    let models = bub_model::Models::new(
        Arc::clone(settings),
        Arc::new(super::model_client(settings)),
    );
    let choice = match &models {
        Ok(models) => models.choose_model().await.ok(),
        Err(_) => None,
    };
    let has_no_model = choice.is_some_and(|choice| choice.model.is_none());
    Ok(
        has_no_model
            && prompt::confirm("No model is configured yet. Set one up now?", true).await?,
    )
}

impl Onboarding<'_> {
    /// Sets a value from text, as `bub config set` does.
    fn set_value(&mut self, path: &str, text: &str) -> Result<()> {
        config::set_value(
            &self.settings,
            &mut self.file,
            self.owner.as_deref(),
            path,
            text,
        )
    }

    /// Assigns unscoped keys and base URLs to the previous provider, so that a new provider does not receive them.
    fn scope_to_owner(&mut self, provider: &str) -> Result<()> {
        let Some(owner) = self.owner.clone().filter(|owner| owner != provider) else {
            return Ok(());
        };
        config::PER_PROVIDER_SETTINGS
            .into_iter()
            .try_for_each(|key| config::scope_to_provider(&mut self.file, Some(&owner), key))
    }

    /// Returns the settings that would be effective with the answers so far.
    fn revised_settings(&self) -> Result<Arc<Settings>> {
        config::validate_file(&self.settings, &self.file).map(Arc::new)
    }

    /// Restores an earlier text of the config file and discards later answers.
    fn restore_file(&mut self, text: String) {
        self.file.set_text(text);
    }
}
