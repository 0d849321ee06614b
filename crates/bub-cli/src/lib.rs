//! The `bub` program as a library: add your plugins to it and get your own `bub`.
//!
//! ```
//! use bub::prelude::*;
//!
//! struct Shout;
//!
//! #[hooks]
//! impl Shout {
//!     async fn build_prompt(&self, next: Next<'_, point::BuildPrompt>) -> Result<Option<Prompt>> {
//!         Ok(next.call().await?.map(|prompt| prompt.text().to_uppercase().into()))
//!     }
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     bub_cli::app().plugin("shout", Shout).run(["bub", "--version"])
//! }
//! ```

mod bundled;
mod cli;

use std::sync::Arc;

use bub::App;

/// The stock program: all commands and the bundled channels, to which you add plugins.
pub fn app() -> App {
    let hooks = Arc::<cli::CliHooks>::default();
    let app = bundled::add_to(App::new(), &hooks);
    cli::commands(&hooks)
        .into_iter()
        .fold(app, App::command)
        .next_steps(cli::QUICK_START)
        .first_command(&["onboard", "--offer"])
}

/// The Rust in the documents compiles.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../docs/README.md")]
    struct Readme;

    #[doc = include_str!("../docs/plugins.md")]
    struct Plugins;

    #[doc = include_str!("../docs/first-plugin-rust.md")]
    struct FirstPlugin;
}
