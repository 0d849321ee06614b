//! Test program whose plugin runs each message as a command, with the launcher of the program.

use std::{process::ExitCode, sync::Arc, time::Duration};

use bub::{
    agent::shell::{Launcher, ShellRequest, Shells},
    prelude::*,
};

struct FakeCommandPlugin(Shells);

impl FakeCommandPlugin {
    fn new(context: &PluginContext<'_>) -> Result<Self> {
        let launcher = Launcher::current_program().ok_or_else(|| Error::config("no launcher"))?;
        let settings = Arc::clone(context.settings);
        Ok(Self(Shells::new(settings, Some(launcher))))
    }
}

#[hooks]
impl FakeCommandPlugin {
    async fn run_model(&self, prompt: &Prompt) -> Result<String> {
        let command = prompt.text().lines().last().unwrap_or_default().to_owned();
        let request = ShellRequest {
            command,
            ..ShellRequest::default()
        };
        let outcome = self
            .0
            .run(request, Duration::from_mins(1), &CancellationToken::new())
            .await?;
        Ok(outcome.output.trim().to_owned())
    }
}

fn main() -> ExitCode {
    bub_cli::app()
        .plugin("commanding", FakeCommandPlugin::new)
        .main()
}
