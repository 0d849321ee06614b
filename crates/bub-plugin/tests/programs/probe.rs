//! A plugin for the tests, as a program of its own.

mod plugin;

fn main() -> std::process::ExitCode {
    bub_plugin::serve_with("probe", plugin::Probe::new)
}
