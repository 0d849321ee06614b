//! A program for the tests: the supervisor of commands, and a program that runs a command until it is killed.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use bub_agent::shell::{Launcher, SUBCOMMAND, ShellRequest, Shells, supervise};
use bub_settings::{Environment, Loader};

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    match args.as_slice() {
        [first, rest @ ..] if first == SUBCOMMAND => supervise(rest),
        [command] => run(&command.to_string_lossy()),
        _ => ExitCode::from(2),
    }
}

/// Starts the command and waits forever.
fn run(command: &str) -> ExitCode {
    let Ok(settings) = Loader::new(Environment::from_process()).load() else {
        return ExitCode::from(2);
    };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    else {
        return ExitCode::from(2);
    };
    let shells = Shells::new(
        Arc::new(settings),
        Some(Launcher(PathBuf::from("/proc/self/exe"))),
    );
    runtime.block_on(async {
        let request = ShellRequest {
            command: command.to_owned(),
            ..ShellRequest::default()
        };
        let started = shells.start(request).await;
        std::future::pending::<()>().await;
        drop(started);
    });
    ExitCode::SUCCESS
}
