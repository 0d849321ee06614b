//! Handles Ctrl-C, SIGTERM and a closed terminal.
//!
//! The first signal cancels the running turn, which is then recorded. The second signal ends the
//! program. At a prompt, no turn runs, and every signal except Ctrl-C ends the program immediately.

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

/// Reports that a signal asked the program to stop.
pub struct StopSignal {
    token: CancellationToken,
    code: Arc<AtomicU8>,
}

impl StopSignal {
    /// Returns a token that the first signal cancels.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Returns the exit code for the received signal: 128 plus its number. Without a signal, 1.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code.load(Ordering::Relaxed))
    }
}

/// Starts listening for the signals that stop the program.
pub fn listen_for_stop() -> StopSignal {
    listen_to_signals(&[
        (SignalKind::interrupt(), 130),
        (SignalKind::terminate(), 143),
    ])
}

/// Starts listening for the signals that stop the program, except Ctrl-C, which the caller handles.
pub fn listen_without_interrupt() -> StopSignal {
    listen_to_signals(&[(SignalKind::terminate(), 143)])
}

/// Installs the default signal handlers at most once per process.
static SIGNALS_INSTALLED: Once = Once::new();

fn listen_to_signals(signals: &[(SignalKind, u8)]) -> StopSignal {
    SIGNALS_INSTALLED.call_once(|| {});
    let stop = StopSignal {
        token: CancellationToken::new(),
        code: Arc::new(AtomicU8::new(1)),
    };
    let (token, code) = (stop.token(), Arc::clone(&stop.code));
    spawn_signal_handlers(signals, move |received, own_code| {
        cancel_on_signal(received, token.clone(), Arc::clone(&code), own_code)
    });
    stop
}

/// Handles these signals, SIGQUIT and SIGHUP on a separate thread, because plugins may block the
/// threads of the runtime. Returns when the handlers are registered.
fn spawn_signal_handlers<F>(
    signals: &[(SignalKind, u8)],
    handle: impl Fn(Signal, u8) -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let hangup = (!is_hangup_ignored()).then_some((SignalKind::hangup(), 129));
    // The default action would leave the terminal in its current mode.
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
        // Nothing is sent; `recv` returns when the sender is dropped.
        Ok(_) => drop(is_registered.recv()),
        Err(error) => tracing::warn!(%error, "signal.listen_failed"),
    }
}

/// Sender for the caller that awaits the next Ctrl-C. If it is set, Ctrl-C does not end the program.
static INTERRUPT_RECEIVER: Mutex<Option<oneshot::Sender<()>>> = Mutex::new(None);

/// Returns a receiver that is notified of the next Ctrl-C, which then does not end the program.
pub fn next_interrupt() -> oneshot::Receiver<()> {
    exit_on_signal();
    let (sender, receiver) = oneshot::channel();
    *INTERRUPT_RECEIVER
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = Some(sender);
    receiver
}

/// Installs handlers that restore the terminal and end the program, unless other handlers are
/// installed.
pub fn exit_on_signal() {
    SIGNALS_INSTALLED.call_once(|| {
        let signals = [
            (SignalKind::interrupt(), 130),
            (SignalKind::terminate(), 143),
        ];
        spawn_signal_handlers(&signals, exit_unless_awaited);
    });
}

/// Ends the program when the signal arrives, unless a caller awaits Ctrl-C.
async fn exit_unless_awaited(mut received: Signal, code: u8) {
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
            restore_and_exit(code);
        }
    }
}

/// Returns whether SIGHUP is ignored, because the program was started with `nohup`.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

/// Cancels the token at the first signal and ends the program at the second.
async fn cancel_on_signal(
    mut received: Signal,
    token: CancellationToken,
    code: Arc<AtomicU8>,
    own_code: u8,
) {
    while received.recv().await.is_some() {
        // A second signal ends the program immediately.
        if token.is_cancelled() {
            restore_and_exit(own_code);
        }
        code.store(own_code, Ordering::Relaxed);
        token.cancel();
        tracing::info!(exit_code = own_code, "signal.received");
    }
}

/// Temporary file to remove when a signal ends the program.
static TEMP_FILE: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Sets the temporary file to remove when a signal ends the program; `None` for no file.
pub fn remove_file_on_exit(file: Option<PathBuf>) {
    *TEMP_FILE.lock().unwrap_or_else(PoisonError::into_inner) = file;
}

#[expect(
    clippy::exit,
    reason = "running tasks must not keep the program from exiting"
)]
/// Restores the terminal, removes the temporary file and ends the program.
fn restore_and_exit(code: u8) {
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
