//! Test program whose plugin misbehaves as the message specifies.
#![allow(clippy::panic, reason = "that is one of the things it is asked for")]

use std::{io::Write, process::ExitCode, sync::Arc};

use bub::prelude::*;
use bub_model::settings::ModelSettings;

struct FailingPlugin {
    settings: Arc<Settings>,
}

impl FailingPlugin {
    fn new(context: &PluginContext<'_>) -> Self {
        Self {
            settings: Arc::clone(context.settings),
        }
    }

    fn secret(&self) -> String {
        let key = self.settings.get(ModelSettings::API_KEY);
        key.shared_value()
            .map(|secret| secret.expose().to_owned())
            .unwrap_or_default()
    }
}

#[hooks]
impl FailingPlugin {
    async fn run_model(&self, prompt: &Prompt) -> Result<Option<String>> {
        match prompt.text().lines().last().unwrap_or_default() {
            "panic" => panic!("on purpose, with {}", self.secret()),
            "fail" => Err(Error::invalid_input(format!(
                "refused for {}",
                self.secret()
            ))),
            "log" => {
                tracing::warn!("the key is {}", self.secret());
                Ok(Some("logged".into()))
            }
            "block" => {
                let _ = writeln!(std::io::stderr(), "blocking");
                loop {
                    std::thread::park();
                }
            }
            "hang" => {
                let _ = writeln!(std::io::stderr(), "hanging");
                std::future::pending().await
            }
            command if command.starts_with(',') => Ok(None),
            other => Ok(Some(other.to_owned())),
        }
    }
}

struct FailingLoadPlugin;

#[hooks]
impl FailingLoadPlugin {}

fn main() -> ExitCode {
    bub_cli::app()
        .plugin("faulty", FailingPlugin::new)
        .plugin("unloadable", |_: &PluginContext<'_>| {
            Err::<FailingLoadPlugin, _>("its license has expired")
        })
        .main()
}
