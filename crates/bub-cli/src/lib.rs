//! The `bub` program as a library: add your plugins to build your own `bub`.
//!
//! ```
//! use bub::prelude::*;
//!
//! struct Shout;
//!
//! #[hooks]
//! impl Shout {
//!     async fn build_prompt(&self, next: Next<'_>) -> Result<Option<Prompt>> {
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

/// Returns the standard program with all commands and the bundled channels. Add your plugins to it.
pub fn app() -> App {
    let hooks = Arc::<cli::CliHooks>::default();
    let app = bundled::add_plugins(App::new(), &hooks);
    cli::commands(&hooks)
        .into_iter()
        .fold(app, App::command)
        .next_steps(cli::QUICK_START)
        .default_command(&["onboard", "--offer"])
        .message_command("run")
        .settings(cli::run_section())
}

/// Compiles the Rust examples in the documentation.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../docs/README.md")]
    struct Readme;

    #[doc = include_str!("../docs/plugins.md")]
    struct Plugins;

    #[doc = include_str!("../docs/first-plugin-rust.md")]
    struct FirstPlugin;
}
