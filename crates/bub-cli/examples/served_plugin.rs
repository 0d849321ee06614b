//! A plugin that runs in its own process. A linked-in plugin differs only in `main`.
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
    bub::plugin::serve("greeter", Greeter)
}
