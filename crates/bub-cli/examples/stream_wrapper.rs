//! A plugin that wraps the stream of whoever answers below it.
//!
//! The wrapper sees every event while it passes, changes text and lets everything else through.
//!
//! ```console
//! $ cargo run --example stream_wrapper -- run hello
//! ```

use std::process::ExitCode;

use bub::prelude::*;

/// Answers word by word.
struct Words;

#[hooks]
impl Words {
    fn run_model_stream(&self) -> ModelStream {
        let words = ["one ", "word ", "at ", "a ", "time"];
        ModelStream::from_events(words.map(|word| StreamEvent::Text(word.to_owned())))
    }
}

/// Makes every word loud.
struct Loud;

#[hooks]
impl Loud {
    async fn run_model_stream(
        &self,
        next: Next<'_, point::RunModelStream>,
    ) -> Result<Option<ModelStream>> {
        let below = next.call().await?;
        Ok(below.map(|stream| {
            stream.map_events(|event| match event {
                StreamEvent::Text(delta) => StreamEvent::Text(delta.to_uppercase()),
                other => other,
            })
        }))
    }
}

fn main() -> ExitCode {
    bub_cli::app()
        .plugin("words", Words)
        .plugin("loud", Loud)
        .main()
}
