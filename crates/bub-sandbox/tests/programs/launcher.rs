//! A program with the subcommand of the supervisor, and attempts to leave the confinement that need system calls.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    match args.as_slice() {
        [first, rest @ ..] if first == bub_sandbox::SUBCOMMAND => bub_sandbox::supervise(rest),
        _ => ExitCode::from(2),
    }
}
