//! Ctrl-C, SIGTERM and a terminal that is closed: the first asks the turn to end and be recorded, the second ends the program.
//! Where people are asked there is no turn: all but Ctrl-C at a question ends the program at once.

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc, Mutex, Once, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
};
use tokio_util::sync::CancellationToken;

/// Fires when the program is asked to stop.
pub struct Stop {
    token: CancellationToken,
    code: Arc<AtomicU8>,
}

impl Stop {
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// The exit code of a program that a signal ended: 128 and the signal's number.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code.load(Ordering::Relaxed))
    }
}

/// Starts listening, on the current runtime.
pub fn listen() -> Stop {
    listen_to(&[
        (SignalKind::interrupt(), 130),
        (SignalKind::terminate(), 143),
    ])
}

/// The same for whoever knows better what Ctrl-C means.
pub fn listen_without_interrupt() -> Stop {
    listen_to(&[(SignalKind::terminate(), 143)])
}

/// Signals have one meaning in a process.
static HEARD: Once = Once::new();

fn listen_to(signals: &[(SignalKind, u8)]) -> Stop {
    HEARD.call_once(|| {});
    let stop = Stop {
        token: CancellationToken::new(),
        code: Arc::new(AtomicU8::new(1)),
    };
    each(signals, |received, code| {
        drop(tokio::spawn(watch(
            received,
            stop.token(),
            Arc::clone(&stop.code),
            code,
        )));
    });
    stop
}

fn each(signals: &[(SignalKind, u8)], watch: impl Fn(Signal, u8)) {
    let hangup = (!ignores_hangup()).then_some((SignalKind::hangup(), 129));
    // By default it would leave the terminal as it is.
    let others = [(SignalKind::quit(), 131)].into_iter().chain(hangup);
    for (kind, code) in signals.iter().copied().chain(others) {
        match signal(kind) {
            Ok(received) => watch(received, code),
            Err(error) => tracing::warn!("cannot listen for signal {kind:?}: {error}"),
        }
    }
}

/// Who is to hear of the next Ctrl-C instead of the program.
static ASKING: Mutex<Option<oneshot::Sender<()>>> = Mutex::new(None);

/// Fires at the next Ctrl-C, which ends nothing else for as long as this is awaited.
pub fn next_interrupt() -> oneshot::Receiver<()> {
    end_at_once();
    let (sender, receiver) = oneshot::channel();
    *ASKING.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
    receiver
}

/// From now on a signal ends the program with the terminal as it was, unless a command has listened before.
pub fn end_at_once() {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    let _entered = runtime.enter();
    HEARD.call_once(|| {
        each(
            &[
                (SignalKind::interrupt(), 130),
                (SignalKind::terminate(), 143),
            ],
            |received, code| {
                drop(tokio::spawn(end(received, code)));
            },
        );
    });
}

async fn end(mut received: Signal, code: u8) {
    while received.recv().await.is_some() {
        let asking =
            (code == 130).then(|| ASKING.lock().unwrap_or_else(PoisonError::into_inner).take());
        if asking
            .flatten()
            .is_none_or(|asking| asking.send(()).is_err())
        {
            exit(code);
        }
    }
}

/// Whether the program was started with `nohup`, to outlive its terminal.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

async fn watch(mut received: Signal, token: CancellationToken, code: Arc<AtomicU8>, own_code: u8) {
    while received.recv().await.is_some() {
        // A second signal means: now.
        if token.is_cancelled() {
            exit(own_code);
        }
        code.store(own_code, Ordering::Relaxed);
        token.cancel();
    }
}

/// What must not outlive the program.
static TEMPORARY: Mutex<Option<PathBuf>> = Mutex::new(None);

/// A file that goes when a signal ends the program.
pub fn remove_at_end(file: Option<PathBuf>) {
    *TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner) = file;
}

#[expect(
    clippy::exit,
    reason = "nothing that still runs may keep the program from ending"
)]
fn exit(code: u8) {
    bub_terminal::tty::restore();
    if let Some(file) = TEMPORARY
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
    {
        let _ = std::fs::remove_file(file);
    }
    std::process::exit(i32::from(code));
}
