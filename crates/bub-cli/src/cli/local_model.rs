//! Offers the model of a server on this machine to a user who has configured none.

use std::{os::unix::process::CommandExt as _, process::Command};

use bub::CommandContext;
use bub_kernel::{Error, Result};

use super::{config, prompt};

/// Asks the user at the terminal whether to use a model that a local server has, if no model is available. If the user
/// agrees, saves the setting `model` and starts the command again, so that every part of it reads the setting.
pub(super) async fn offer_local_model(context: &CommandContext) -> Result<()> {
    if !prompt::has_terminal() {
        return Ok(());
    }
    // The command reports an error of the settings when it uses them.
    let Ok(models) = super::models(&context.settings, &context.logins) else {
        return Ok(());
    };
    let Some((model, base_url)) = models.local_model_offer().await else {
        return Ok(());
    };
    let question = format!("No model is configured. Use `{model}` of the server at {base_url}?");
    if !prompt::confirm(&question, false).await? {
        notice!("to search for no local servers, set `local_models: false`");
        return Ok(());
    }
    let settings = &context.settings;
    let mut file = config::open_file(settings)?;
    let owner = config::unscoped_owner(settings, &file);
    let model = model.to_string();
    config::set_value(settings, &mut file, owner.as_deref(), "model", &model)?;
    config::save_and_report(settings, &mut file)?;
    Err(restart_error())
}

/// Starts the command again with the same arguments. Returns the error if that fails.
pub(super) fn restart_error() -> Error {
    let error = match std::env::current_exe() {
        Ok(program) => Command::new(program)
            .args(std::env::args_os().skip(1))
            .exec(),
        Err(error) => error,
    };
    Error::unknown(format!(
        "cannot start the command again: {error}; run it again"
    ))
}
