//! `bub onboard`: sets up a model, API keys and channels. Tests the settings before it saves them.

mod channels;
pub(super) mod model;
mod plugins;
mod preset;

use std::{process::ExitCode, sync::Arc};

use bub::{BuiltinPlugin, CommandContext};
use bub_kernel::{Error, ErrorKind, Framework, Result};
use bub_model::LoginFactory;
use bub_settings::{ConfigFile, Settings};

use super::{config, local_model, output, prompt};

#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command"
)]
/// Set up a model, API keys, and channels
///
/// Existing values are offered as defaults. Settings are tested before they are saved.
#[derive(clap::Args, Default)]
pub(super) struct OnboardArgs {
    /// Set up only this plugin or channel; `builtin` is the model
    #[arg(value_name = "PLUGIN", conflicts_with_all = ["model", "api_base", "api_key_stdin", "yes"])]
    plugin: Option<String>,
    /// Model to use
    #[arg(long, value_name = "PROVIDER:MODEL")]
    model: Option<String>,
    /// Base URL of the provider
    #[arg(long, value_name = "URL")]
    api_base: Option<String>,
    /// Read the API key from stdin
    #[arg(long)]
    api_key_stdin: bool,
    /// Save without testing
    #[arg(long)]
    no_test: bool,
    /// Do not prompt
    #[arg(long)]
    yes: bool,
    /// Offer the setup if no model is configured
    // `bub` without a command sets this flag.
    #[arg(long, hide = true)]
    offer: bool,
}

/// The setup in progress: the config file with the values that the user entered so far.
struct Onboarding<'a> {
    framework: &'a Framework,
    settings: Arc<Settings>,
    logins: &'a [LoginFactory],
    file: ConfigFile,
    /// The provider that was configured before the setup. If the file sets `api_key` or `api_base` without a provider,
    /// the value belongs to this provider.
    owner: Option<String>,
    /// Whether to prompt the user.
    can_ask: bool,
    /// Whether to test settings before saving.
    runs_tests: bool,
}

pub(super) async fn run(context: CommandContext, args: OnboardArgs) -> Result<ExitCode> {
    set_up(&context, args).await.or_else(|error| {
        if prompt::is_interruption(&error) {
            notice!("{}", error.message());
            return Ok(ExitCode::FAILURE);
        }
        let message = context.settings.redactor().redact(error.message());
        notice!("Onboarding failed: {}", output::sanitize_line(&message));
        Ok(match error.kind() {
            ErrorKind::Config | ErrorKind::InvalidInput | ErrorKind::NotFound => {
                ExitCode::from(config::EXIT_USAGE)
            }
            _ => ExitCode::FAILURE,
        })
    })
}

async fn set_up(context: &CommandContext, args: OnboardArgs) -> Result<ExitCode> {
    let settings = Arc::clone(&context.settings);
    if args.offer && !offer_setup(context).await? {
        return output::print(super::QUICK_START);
    }
    let can_ask = !args.yes;
    if can_ask && !prompt::has_terminal() {
        return Err(Error::config(
            "cannot prompt: stdin is not a terminal; use `--yes` with `--model` and `--api-key-stdin`",
        ));
    }
    let key = args.api_key_stdin.then(prompt::read_stdin).transpose()?;
    let model_args = model::ModelInput {
        model: args.model,
        base: args.api_base,
        key,
    };
    let file = config::open_file(&settings)?;
    let mut onboarding = Onboarding {
        framework: &context.framework,
        owner: config::unscoped_owner(&settings, &file),
        settings,
        logins: &context.logins,
        file,
        can_ask,
        runs_tests: !args.no_test,
    };
    if can_ask {
        notice!(
            "bub v{}: set up your agent.\nPress Enter to accept the value in brackets.\nPress Ctrl-C to quit without saving.\n",
            env!("CARGO_PKG_VERSION")
        );
    }
    let is_builtin_only = args.plugin.is_some();
    if let Some(plugin) = args.plugin.filter(|plugin| plugin != "builtin") {
        plugins::set_up_plugin(&mut onboarding, &plugin).await?;
        return save(&mut onboarding, "");
    }
    let is_first = onboarding.settings.text_at("model").is_none();
    model::set_up_model(&mut onboarding, model_args).await?;
    if can_ask && is_first {
        preset::choose_preset(&mut onboarding).await?;
    }
    if can_ask && !is_builtin_only {
        channels::set_up_channels(&mut onboarding).await?;
        plugins::set_up_plugins(&mut onboarding).await?;
    }
    save(&mut onboarding, "Next: bub chat\n")
}

/// Saves the config file and prints what to do next.
fn save(onboarding: &mut Onboarding<'_>, next_step: &str) -> Result<ExitCode> {
    let can_ask = onboarding.can_ask;
    let (settings, file) = (&onboarding.settings, &mut onboarding.file);
    let path = settings.config_file().display();
    if !file.is_changed() {
        // The file may be read-only; `bub doctor` reports a file that others can read.
        let _ = file.make_private();
        config::report_problems(settings, &config::validate_file(settings, file)?, file);
        return output::print(&format!("No changes to {path}\n"));
    }
    let revised = config::save_and_report(settings, file)?;
    if can_ask {
        notice!("");
    }
    config::warn_overridden(&revised, "model");
    output::print(&format!("Saved config to {path}\n{next_step}"))
}

/// Offers the setup to a user at the terminal if no model is configured. After the setup, starts the command again, so
/// that every part of it reads the settings.
pub(super) async fn offer_onboarding(context: &CommandContext) -> Result<()> {
    if !prompt::has_terminal()
        || has_other_model(&context.framework)
        || !offer_setup(context).await?
    {
        return Ok(());
    }
    set_up(context, OnboardArgs::default()).await?;
    Err(local_model::restart_error())
}

/// Returns whether a plugin other than `builtin` answers messages.
fn has_other_model(framework: &Framework) -> bool {
    let hooks = framework.hooks().implemented_hooks();
    let mut models = hooks
        .into_iter()
        .filter(|(spec, _)| matches!(spec.name, "run_model" | "run_model_stream"));
    models.any(|(_, plugins)| plugins.iter().any(|name| **name != *BuiltinPlugin::NAME))
}

/// Offers the setup if no model is configured, and returns whether the user accepted.
async fn offer_setup(context: &CommandContext) -> Result<bool> {
    let choice = match super::models(&context.settings, &context.logins) {
        Ok(models) => models.choose_model().await.ok(),
        Err(_) => None,
    };
    let has_no_model = choice.is_some_and(|choice| choice.model.is_none());
    let question = "No model is configured yet. Set one up now?";
    Ok(has_no_model && prompt::confirm(question, true).await?)
}

impl Onboarding<'_> {
    /// Sets a value from text, as `bub config set` does.
    fn set_value(&mut self, path: &str, text: &str) -> Result<()> {
        let owner = self.owner.as_deref();
        config::set_value(&self.settings, &mut self.file, owner, path, text)
    }

    /// If `provider` differs from the previous provider, moves API keys and base URLs that name no provider to the
    /// previous provider. `provider` then does not receive them.
    fn scope_to_owner(&mut self, provider: &str) -> Result<()> {
        match self.owner.as_deref().filter(|owner| *owner != provider) {
            Some(owner) => config::scope_all_to_provider(&mut self.file, owner),
            None => Ok(()),
        }
    }

    /// Redacts an error, and replaces the config file in it: the file does not have the answer yet.
    fn name_answer(&self, error: &str) -> String {
        let error = self.settings.redactor().redact(error);
        let file = format!("{}:", self.settings.config_file().display());
        match error.strip_prefix(&file) {
            Some(rest) => {
                let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ':');
                format!("your answer:{rest}")
            }
            None => error.into_owned(),
        }
    }

    /// Returns the settings that would be effective with the values entered so far.
    fn revised_settings(&self) -> Result<Arc<Settings>> {
        config::validate_file(&self.settings, &self.file).map(Arc::new)
    }
}
