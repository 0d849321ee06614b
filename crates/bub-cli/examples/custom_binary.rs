//! Your own `bub`: a plugin with a setting and a command, linked into one binary.
//!
//! ```console
//! $ cargo run --example custom_binary -- greet --name Ada
//! $ cargo run --example custom_binary -- run hello
//! ```

use std::{io::Write, process::ExitCode};

use bub::{CliApp, CliCommand, CommandArg, prelude::*};
use serde_json::{Value, json};

/// Settings under `greeter:` in config.yml and `BUB_GREETER_*` in the environment.
#[derive(Settings)]
#[settings(section = "greeter")]
struct GreeterSettings {
    /// Word to greet with.
    #[setting(default = "Hello")]
    word: String,
}

struct Greeter {
    settings: GreeterSettings,
}

#[hooks]
impl Greeter {
    fn run_model(&self, session_id: &str) -> String {
        format!("{}, {session_id}!", self.settings.word)
    }

    /// Asks for the settings of this plugin during `bub onboard` and returns its part of the config file.
    fn onboard_config(&self, current_config: &Value) -> Result<Option<Value>> {
        if current_config.pointer("/greeter/word").is_some() {
            return Ok(None);
        }
        write!(
            std::io::stderr(),
            "word to greet with [{}]: ",
            self.settings.word
        )?;
        let mut line = String::new();
        std::io::stdin().read_line(&mut line)?;
        let word = line.trim();
        Ok((!word.is_empty()).then(|| json!({"greeter": {"word": word}})))
    }

    fn register_cli_commands(&self, app: &CliApp) {
        let name = CommandArg::option("name", "Name of the person").default_value("world");
        let word = self.settings.word.clone();
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
        .plugin("greeter", |settings: GreeterSettings| Greeter { settings })
        .main()
}
