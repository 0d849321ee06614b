//! A plugin that changes what the model is asked.
//!
//! `build_prompt` asks the plugins below itself (here: `builtin`) for their prompt and adds a line.
//!
//! ```console
//! $ cargo run --example prompt_plugin -- run "What is a tape?"
//! ```

use std::process::ExitCode;

use bub::prelude::*;

struct Brief;

#[hooks]
impl Brief {
    async fn build_prompt(&self, next: Next<'_, point::BuildPrompt>) -> Result<Option<Prompt>> {
        let below = next.call().await?;
        Ok(below.map(|prompt| format!("{}\n\nAnswer in one sentence.", prompt.text()).into()))
    }
}

/// Shows the prompt in place of an answer, so that this example needs no model.
struct ShowPrompt;

#[hooks]
impl ShowPrompt {
    fn run_model(&self, prompt: &Prompt) -> String {
        format!("The model would be asked:\n{}", prompt.text())
    }
}

fn main() -> ExitCode {
    bub_cli::app()
        .plugin("show-prompt", ShowPrompt)
        .plugin("brief", Brief)
        .main()
}
