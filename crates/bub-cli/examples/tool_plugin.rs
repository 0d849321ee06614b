//! A plugin with a tool.
//!
//! `#[tool]` makes a tool of a function: its name, what the model is told and how its arguments are checked all come
//! from the code.
//!
//! ```console
//! $ cargo run --example tool_plugin -- run "What can you do?"
//! ```

use std::process::ExitCode;

use bub::{agent::tools, prelude::*};

/// Counts the words of a text.
#[tool(name = "words.count", read_only)]
async fn count_words(
    /// The text.
    text: String,
    /// Count only words of at least so many letters.
    #[default(1)]
    at_least: u64,
    /// Count only words that contain this.
    containing: Option<String>,
) -> Result<u64> {
    let containing = containing.unwrap_or_default();
    let long = text
        .split_whitespace()
        .filter(|word| word.chars().count() as u64 >= at_least);
    Ok(long.filter(|word| word.contains(&containing)).count() as u64)
}

struct Words;

#[hooks]
impl Words {
    /// Shows what a model is told about the tool and makes one call, so that this example needs no model.
    async fn run_model(&self, turn: &Turn) -> Result<String> {
        let tool = tools::find("words_count", turn.framework().tools())?;
        let context = ToolContext::new(turn.clone());
        let arguments = Fields::new()
            .with("text", "one two three")
            .with("at_least", "5");
        let result = tool.call(arguments.into(), context).await?;
        let block = tools::block(std::slice::from_ref(tool));
        Ok(format!("{block}\nwords_count says {result}."))
    }
}

fn main() -> ExitCode {
    bub_cli::app()
        .tool(count_words())
        .plugin("words", Words)
        .main()
}
