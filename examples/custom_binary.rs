//! A `bub` of your own: a plugin with a setting and a command, linked into one binary.
//!
//! ```console
//! $ cargo run --example custom_binary -- greet --name Ada
//! $ cargo run --example custom_binary -- run hello
//! ```

use std::{io::Write, process::ExitCode, sync::Arc};

use bub::{
    clap::{Arg, Command},
    prelude::*,
    settings::{Declared, Key, Section},
};

/// `greeter.word` in config.yml, `BUB_GREETER_WORD` in the environment.
static WORD: Key<String> = Key::new("greeter.word", "Hello", "The word to greet with.");
static KEYS: &[&dyn Declared] = &[&WORD];

struct Greeter {
    settings: Arc<Settings>,
}

impl Greeter {
    fn new(context: &PluginContext<'_>) -> Result<Self> {
        let settings = context.service().ok_or_else(|| Error::config("no settings"))?;
        Ok(Self { settings })
    }
}

#[hooks]
impl Greeter {
    fn run_model(&self, session_id: &str) -> String {
        format!("{}, {session_id}!", self.settings.get(&WORD))
    }

    fn register_cli_commands(&self, app: &CliApp) {
        let name = Arg::new("name").long("name").default_value("world").help("Whom to greet");
        let command = Command::new("greet").about("Greet somebody").arg(name);
        let word = self.settings.get(&WORD);
        app.add(CliCommand::new(command, move |context| {
            let name = context.matches.get_one::<String>("name").cloned().unwrap_or_default();
            let line = format!("{word}, {name}!");
            async move {
                writeln!(std::io::stdout(), "{line}").map_err(|error| Error::unknown(error.to_string()))?;
                Ok(ExitCode::SUCCESS)
            }
        }));
    }
}

fn main() -> ExitCode {
    App::new().settings(Section::new("greeter", KEYS)).plugin_with("greeter", Greeter::new).main()
}
