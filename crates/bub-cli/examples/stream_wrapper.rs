//! A plugin that wraps the stream of the next plugin.
//!
//! The wrapper receives every event of the stream, changes text events and passes on all others.
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

/// Converts the answer to upper case.
struct Uppercase;

#[hooks]
impl Uppercase {
    async fn run_model_stream(&self, next: Next<'_>) -> Result<Option<ModelStream>> {
        let stream = next.call().await?;
        Ok(stream.map(|stream| {
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
        .plugin("uppercase", Uppercase)
        .main()
}
