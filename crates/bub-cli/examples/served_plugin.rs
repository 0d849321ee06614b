//! The same plugin linked in, or as a program of its own: only `main` differs.
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
        // No opinion on anything but a greeting: then the plugins below are asked.
        prompt
            .text()
            .ends_with("hello")
            .then(|| "Hello from a plugin!".to_owned())
    }
}

fn main() -> ExitCode {
    bub::plugin::serve("greeter", Greeter)
}
