//! The time to run `true`, from call to result.
#![allow(
    clippy::expect_used,
    reason = "a bench that cannot start has nothing to measure"
)]

use std::{process::ExitCode, sync::Arc, time::Duration};

use bub_agent::shell::{Launcher, SUBCOMMAND, ShellRequest, Shells, supervise};
use bub_kernel::CancellationToken;
use bub_settings::{Environment, Loader};
use divan::Bencher;

/// Runs the benches, or acts as the supervisor like the real program.
fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    match args.as_slice() {
        [first, rest @ ..] if first == SUBCOMMAND => supervise(rest),
        _ => {
            divan::main();
            ExitCode::SUCCESS
        }
    }
}

#[divan::bench]
fn supervised(bencher: Bencher<'_, '_>) {
    run(bencher, Launcher::current_program());
}

#[divan::bench]
fn direct(bencher: Bencher<'_, '_>) {
    run(bencher, None);
}

/// Baseline: `bash -c true` with the standard library.
#[divan::bench]
fn standard_library() {
    std::process::Command::new("bash")
        .args(["-c", "true"])
        .output()
        .expect("bash");
}

fn run(bencher: Bencher<'_, '_>, launcher: Option<Launcher>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let home = std::env::temp_dir().join("bub-bench-no-such-home");
    let settings = Loader::new(Environment::from_pairs([(
        "BUB_HOME",
        home.into_os_string(),
    )]))
    .load()
    .expect("defaults");
    let shells = Shells::new(Arc::new(settings), launcher);
    let request = ShellRequest {
        command: "true".to_owned(),
        ..ShellRequest::default()
    };
    bencher.bench_local(|| {
        let cancel = CancellationToken::new();
        runtime
            .block_on(shells.run(request.clone(), Duration::from_secs(5), &cancel))
            .expect("an outcome")
    });
}
