//! A plugin with a tool.
//!
//! `#[tool]` converts a function into a tool. The name, the description and the parameter schema come from the code.
//!
//! ```console
//! $ cargo run --example tool_plugin -- run "What can you do?"
//! ```

use std::process::ExitCode;

use bub::{Fields, agent::tools, prelude::*};

/// Count the words of a text
#[tool(name = "words.count", read_only)]
async fn count_words(
    /// Text to count
    text: String,
    /// Minimum number of letters per word
    #[default(1)]
    at_least: u64,
    /// Count only words that contain this text
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
    /// Shows the tool as the model sees it and calls it once, so that this example needs no model.
    async fn run_model(&self, turn: &Turn) -> Result<String> {
        let tool = tools::find_tool("words_count", turn.framework().tools())?;
        let context = ToolContext::new(turn.clone());
        let arguments = Fields::new()
            .with("text", "one two three")
            .with("at_least", "5");
        let result = tool.call(arguments.into(), context).await?;
        let spec = tool.spec();
        let (name, description) = (spec.model_name(), &spec.description);
        Ok(format!("{name}: {description}\n{name} says {result}."))
    }
}

fn main() -> ExitCode {
    bub_cli::app()
        .tool(count_words())
        .plugin("words", Words)
        .main()
}
