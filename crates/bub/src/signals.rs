//! Ctrl-C, SIGTERM and a terminal that is closed: the first asks the turn to end and be recorded, the second ends the program.
//! Where people are asked there is no turn: all but Ctrl-C at a question ends the program at once.

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc, Mutex, Once, PoisonError,
        atomic::{AtomicU8, Ordering},
        mpsc,
    },
    thread,
};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// Fires when the program is asked to stop.
pub struct StopSignal {
    token: CancellationToken,
    code: Arc<AtomicU8>,
}

impl StopSignal {
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// The exit code of a program that a signal ended: 128 and the signal's number.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code.load(Ordering::Relaxed))
    }
}

/// Starts listening.
pub fn listen() -> StopSignal {
    listen_to(&[
        (SignalKind::interrupt(), 130),
        (SignalKind::terminate(), 143),
    ])
}

/// The same for whoever knows better what Ctrl-C means.
pub fn listen_without_interrupt() -> StopSignal {
    listen_to(&[(SignalKind::terminate(), 143)])
}

/// Signals have one meaning in a process.
static SIGNALS_INSTALLED: Once = Once::new();

fn listen_to(signals: &[(SignalKind, u8)]) -> StopSignal {
    SIGNALS_INSTALLED.call_once(|| {});
    let stop = StopSignal {
        token: CancellationToken::new(),
        code: Arc::new(AtomicU8::new(1)),
    };
    let (token, code) = (stop.token(), Arc::clone(&stop.code));
    handle_all(signals, move |received, own_code| {
        watch(received, token.clone(), Arc::clone(&code), own_code)
    });
    stop
}

/// Handles these signals, and those that end every program, on a thread of its own: a plugin may block the threads of
/// the runtime. Returns when the signals are registered.
fn handle_all<F>(signals: &[(SignalKind, u8)], handle: impl Fn(Signal, u8) -> F + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let hangup = (!ignores_hangup()).then_some((SignalKind::hangup(), 129));
    // By default it would leave the terminal as it is.
    let others = [(SignalKind::quit(), 131)].into_iter().chain(hangup);
    let signals: Vec<_> = signals.iter().copied().chain(others).collect();
    let (registered, is_registered) = mpsc::channel::<()>();
    let work = async move {
        let mut handlers = JoinSet::new();
        for (kind, code) in signals {
            match signal(kind) {
                Ok(received) => drop(handlers.spawn(handle(received, code))),
                Err(error) => tracing::warn!(signal = ?kind, %error, "signal.listen_failed"),
            }
        }
        drop(registered);
        while handlers.join_next().await.is_some() {}
    };
    let thread = thread::Builder::new().name("signals".to_owned());
    let spawned = thread.spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build();
        match runtime {
            Ok(runtime) => runtime.block_on(work),
            Err(error) => tracing::warn!(%error, "signal.listen_failed"),
        }
    });
    match spawned {
        // The other end is dropped, nothing is sent.
        Ok(_) => drop(is_registered.recv()),
        Err(error) => tracing::warn!(%error, "signal.listen_failed"),
    }
}

/// Who is to hear of the next Ctrl-C instead of the program.
static INTERRUPT_RECEIVER: Mutex<Option<oneshot::Sender<()>>> = Mutex::new(None);

/// Fires at the next Ctrl-C, which ends nothing else for as long as this is awaited.
pub fn next_interrupt() -> oneshot::Receiver<()> {
    exit_on_signal();
    let (sender, receiver) = oneshot::channel();
    *INTERRUPT_RECEIVER
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = Some(sender);
    receiver
}

/// From now on a signal ends the program with the terminal as it was, unless a command has listened before.
pub fn exit_on_signal() {
    SIGNALS_INSTALLED.call_once(|| {
        let signals = [
            (SignalKind::interrupt(), 130),
            (SignalKind::terminate(), 143),
        ];
        handle_all(&signals, end);
    });
}

async fn end(mut received: Signal, code: u8) {
    while received.recv().await.is_some() {
        let asking = (code == 130).then(|| {
            INTERRUPT_RECEIVER
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take()
        });
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
        tracing::info!(exit_code = own_code, "signal.received");
    }
}

/// What must not outlive the program.
static TEMP_FILE: Mutex<Option<PathBuf>> = Mutex::new(None);

/// A file that goes when a signal ends the program.
pub fn remove_at_end(file: Option<PathBuf>) {
    *TEMP_FILE.lock().unwrap_or_else(PoisonError::into_inner) = file;
}

#[expect(
    clippy::exit,
    reason = "nothing that still runs may keep the program from ending"
)]
fn exit(code: u8) {
    bub_terminal::tty::restore();
    if let Some(file) = TEMP_FILE
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
    {
        let _ = std::fs::remove_file(file);
    }
    std::process::exit(i32::from(code));
}
