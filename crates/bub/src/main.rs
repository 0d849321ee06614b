//! The `bub` program: the stock [`App`](bub::App) without further plugins.

use std::process::ExitCode;

fn main() -> ExitCode {
    bub::App::new().main()
}
