//! The probe plugin as a program. It is also the supervisor for other plugins in the tests.

mod plugin;

fn main() -> std::process::ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    match args.as_slice() {
        [first, rest @ ..] if first == bub_sandbox::SUBCOMMAND => bub_sandbox::supervise(rest),
        _ => bub_plugin::serve(Vec::new(), |builder| {
            builder.plugin_with("probe", plugin::Probe::new)
        }),
    }
}
