//! What it costs to start a command.
#![allow(clippy::expect_used, reason = "a bench that cannot start has nothing to measure")]

use std::{path::PathBuf, sync::Arc, time::Duration};

use bub_agent::shell::{Launcher, Request, Shells};
use bub_kernel::CancellationToken;
use bub_settings::{Environment, Loader};
use divan::Bencher;

fn main() {
    divan::main();
}

/// `true` from call to result, without a supervisor.
#[divan::bench]
fn direct(bencher: Bencher<'_, '_>) {
    run(bencher, None);
}

/// The same under the supervisor of the program that `BUB_BENCH_PROGRAM` names at build time, if it does.
#[divan::bench]
fn supervised(bencher: Bencher<'_, '_>) {
    if let Some(program) = option_env!("BUB_BENCH_PROGRAM") {
        run(bencher, Some(Launcher(PathBuf::from(program))));
    }
}

fn run(bencher: Bencher<'_, '_>, launcher: Option<Launcher>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let settings =
        Loader::new(Environment::from_pairs([("PATH", "/bin:/usr/bin")])).load().expect("defaults");
    let shells = Shells::new(Arc::new(settings), launcher);
    let request = Request { command: "true".to_owned(), ..Request::default() };
    bencher.bench_local(|| {
        let run =
            async { shells.run(request.clone(), Duration::from_secs(5), &CancellationToken::new()).await };
        runtime.block_on(run).expect("an outcome")
    });
}
