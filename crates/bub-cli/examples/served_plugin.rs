//! A plugin that runs in its own process. If it is linked in, `main` starts with `bub_cli::app()`.
//!
//! ```console
//! $ cargo build --example served_plugin
//! $ bub plugin add target/debug/examples/served_plugin
//! $ bub run hello
//! ```

use std::process::ExitCode;

use bub::prelude::*;

struct Greeter;

#[hooks]
impl Greeter {
    async fn run_model(&self, prompt: &Prompt) -> Option<String> {
        // `None` leaves the prompt to the next plugin.
        prompt
            .text()
            .ends_with("hello")
            .then(|| "Hello from a plugin!".to_owned())
    }
}

fn main() -> ExitCode {
    App::new().plugin("greeter", Greeter).main()
}
