//! A plugin that answers instead of a model.
//!
//! ```console
//! $ cargo run --example echo_model -- run hello
//! ```

use std::process::ExitCode;

use bub::prelude::*;

struct Echo;

#[hooks]
impl Echo {
    async fn run_model(&self, prompt: &Prompt, session_id: &str) -> Option<String> {
        let text = prompt.text();
        // The prompt starts with the context of the message; the last line is the message.
        let message = text.lines().last()?;
        Some(format!("{session_id} said: {message}"))
    }
}

fn main() -> ExitCode {
    bub_cli::app().plugin("echo", Echo).main()
}
