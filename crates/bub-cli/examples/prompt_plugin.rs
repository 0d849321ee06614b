//! A plugin that changes the prompt.
//!
//! `build_prompt` calls the next plugin (here: `builtin`) for its prompt and adds a line.
//!
//! ```console
//! $ cargo run --example prompt_plugin -- run "What is a tape?"
//! ```

use std::process::ExitCode;

use bub::prelude::*;

struct Brief;

#[hooks]
impl Brief {
    async fn build_prompt(&self, next: Next<'_>) -> Result<Option<Prompt>> {
        let prompt = next.call().await?;
        Ok(prompt.map(|prompt| format!("{}\n\nAnswer in one sentence.", prompt.text()).into()))
    }
}

/// Shows the prompt instead of an answer, so that this example needs no model.
struct ShowPrompt;

#[hooks]
impl ShowPrompt {
    fn run_model(&self, prompt: &Prompt) -> String {
        format!("Prompt for the model:\n{}", prompt.text())
    }
}

fn main() -> ExitCode {
    bub_cli::app()
        .plugin("show-prompt", ShowPrompt)
        .plugin("brief", Brief)
        .main()
}
