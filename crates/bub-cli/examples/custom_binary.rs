//! Your own `bub`: a plugin with a setting and a command, linked into one binary.
//!
//! ```console
//! $ cargo run --example custom_binary -- greet --name Ada
//! $ cargo run --example custom_binary -- run hello
//! ```

use std::{io::Write, process::ExitCode, sync::Arc};

use bub::{
    CliApp, CliCommand, CommandArg,
    prelude::*,
    settings::{AnySetting, Section, SettingKey},
};
use serde_json::{Value, json};

/// `greeter.word` in config.yml, `BUB_GREETER_WORD` in the environment.
static WORD: SettingKey<String> = SettingKey::new("greeter.word", "Hello", "Word to greet with");
static KEYS: &[&dyn AnySetting] = &[&WORD];

struct Greeter {
    settings: Arc<Settings>,
}

impl Greeter {
    fn new(context: &PluginContext<'_>) -> Self {
        Self {
            settings: Arc::clone(context.settings),
        }
    }
}

#[hooks]
impl Greeter {
    fn run_model(&self, session_id: &str) -> String {
        format!("{}, {session_id}!", self.settings.get(&WORD))
    }

    /// Asks for the settings of this plugin during `bub onboard` and returns its part of the config file.
    fn onboard_config(&self, current_config: &Value) -> Result<Option<Value>> {
        if current_config.pointer("/greeter/word").is_some() {
            return Ok(None);
        }
        write!(
            std::io::stderr(),
            "word to greet with [{}]: ",
            self.settings.get(&WORD)
        )?;
        let mut line = String::new();
        std::io::stdin().read_line(&mut line)?;
        let word = line.trim();
        Ok((!word.is_empty()).then(|| json!({"greeter": {"word": word}})))
    }

    fn register_cli_commands(&self, app: &CliApp) {
        let name = CommandArg::option("name", "Name of the person").default_value("world");
        let word = self.settings.get(&WORD);
        let greet = CliCommand::new("greet", "Greet a person").arg(name);
        app.add(greet.handler(move |context| {
            let name = context.args.text("name").unwrap_or_default();
            let line = format!("{word}, {name}!");
            async move {
                writeln!(std::io::stdout(), "{line}")?;
                Ok(ExitCode::SUCCESS)
            }
        }));
    }
}

fn main() -> ExitCode {
    bub_cli::app()
        .settings(Section::new("greeter", KEYS))
        .plugin_with("greeter", Greeter::new)
        .main()
}
