//! Ctrl-C, SIGTERM and a terminal that is closed: the first asks the turn to end and be recorded, the second ends the program.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Fires when the program is asked to stop.
pub(crate) struct Stop {
    token: CancellationToken,
    code: Arc<AtomicU8>,
}

impl Stop {
    pub(crate) fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// The exit code of a program that a signal ended: 128 and the signal's number.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code.load(Ordering::Relaxed))
    }
}

/// Starts listening, on the current runtime.
pub(crate) fn listen() -> Stop {
    listen_to(&[(SignalKind::interrupt(), 130), (SignalKind::terminate(), 143)])
}

/// The same for whoever knows better what Ctrl-C means.
pub(crate) fn listen_without_interrupt() -> Stop {
    listen_to(&[(SignalKind::terminate(), 143)])
}

fn listen_to(signals: &[(SignalKind, u8)]) -> Stop {
    let stop = Stop { token: CancellationToken::new(), code: Arc::new(AtomicU8::new(1)) };
    let hangup = (!ignores_hangup()).then_some((SignalKind::hangup(), 129));
    for (kind, code) in signals.iter().copied().chain(hangup) {
        match signal(kind) {
            Ok(received) => drop(tokio::spawn(watch(received, stop.token(), Arc::clone(&stop.code), code))),
            Err(error) => tracing::warn!("cannot listen for signal {kind:?}: {error}"),
        }
    }
    stop
}

/// Whether the program was started with `nohup`, to outlive its terminal.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

#[expect(clippy::exit, reason = "a second signal means: now")]
async fn watch(
    mut received: tokio::signal::unix::Signal,
    token: CancellationToken,
    code: Arc<AtomicU8>,
    own_code: u8,
) {
    while received.recv().await.is_some() {
        if token.is_cancelled() {
            bub_terminal::tty::restore();
            std::process::exit(i32::from(own_code));
        }
        code.store(own_code, Ordering::Relaxed);
        token.cancel();
    }
}
