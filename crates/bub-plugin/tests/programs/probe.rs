//! A plugin for the tests, as a program of its own, and the supervisor of others.

mod plugin;

fn main() -> std::process::ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    match args.as_slice() {
        [first, rest @ ..] if first == bub_sandbox::SUBCOMMAND => bub_sandbox::supervise(rest),
        _ => bub_plugin::serve_with("probe", plugin::Probe::new),
    }
}
