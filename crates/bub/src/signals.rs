//! Handles Ctrl-C, SIGTERM and a closed terminal.
//!
//! The first signal cancels the running turn, which is then recorded. The second signal ends the
//! program, except for commands that only remove what they created. While the program asks the user a question, no turn runs, and every signal except
//! Ctrl-C ends the program immediately.

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc, Once,
        atomic::{AtomicU8, Ordering},
        mpsc,
    },
    thread,
};

use parking_lot::Mutex;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// Stop request by a signal: a token that the first signal cancels, and the exit code for that
/// signal.
#[derive(Clone)]
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

/// Ctrl-C with its exit code.
const INTERRUPT: (SignalKind, u8) = (SignalKind::interrupt(), 130);
/// SIGTERM with its exit code.
const TERMINATE: (SignalKind, u8) = (SignalKind::terminate(), 143);

/// Starts listening for the signals that stop the program.
pub fn listen_for_stop() -> StopSignal {
    listen_to_signals(&[INTERRUPT, TERMINATE], LaterSignals::End)
}

/// Starts listening for the signals that stop the program. Only the first one has an effect: the caller then removes what
/// it created and ends within seconds. Programs such as `timeout` send the same signal twice.
pub fn listen_for_stop_once() -> StopSignal {
    listen_to_signals(&[INTERRUPT, TERMINATE], LaterSignals::Ignore)
}

/// Starts listening for the signals that stop the program, except Ctrl-C, which the caller handles.
pub fn listen_without_interrupt() -> StopSignal {
    listen_to_signals(&[TERMINATE], LaterSignals::End)
}

/// Completed when signal handlers are installed. [`exit_on_signal`] then installs no handlers.
static SIGNALS_INSTALLED: Once = Once::new();

/// What signals after the first one do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LaterSignals {
    /// End the program.
    End,
    Ignore,
}

fn listen_to_signals(signals: &[(SignalKind, u8)], later: LaterSignals) -> StopSignal {
    SIGNALS_INSTALLED.call_once(|| {});
    let stop = StopSignal {
        token: CancellationToken::new(),
        code: Arc::new(AtomicU8::new(1)),
    };
    let handled = stop.clone();
    spawn_signal_handlers(signals, move |received, code| {
        cancel_on_signal(received, handled.clone(), code, later)
    });
    stop
}

/// Handles `signals`, SIGQUIT and SIGHUP on a separate thread, because plugins may block the
/// threads of the runtime. Returns when the handlers are registered.
fn spawn_signal_handlers<F>(
    signals: &[(SignalKind, u8)],
    handle: impl Fn(Signal, u8) -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let hangup = (!is_hangup_ignored()).then_some((SignalKind::hangup(), 129));
    // Handled, because the default action of SIGQUIT and SIGHUP would not restore the terminal.
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
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        match runtime.enable_io().build() {
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
    *INTERRUPT_RECEIVER.lock() = Some(sender);
    receiver
}

/// Installs handlers that restore the terminal and end the program, unless other handlers are
/// installed.
pub fn exit_on_signal() {
    SIGNALS_INSTALLED.call_once(|| {
        spawn_signal_handlers(&[INTERRUPT, TERMINATE], exit_unless_awaited);
    });
}

/// Ends the program when the signal arrives. If the signal is Ctrl-C and a caller awaits it,
/// notifies the caller instead.
async fn exit_unless_awaited(mut received: Signal, code: u8) {
    while received.recv().await.is_some() {
        let awaiting = INTERRUPT_RECEIVER.lock().take_if(|_| code == 130);
        if awaiting.is_none_or(|awaiting| awaiting.send(()).is_err()) {
            restore_and_exit(code);
        }
    }
}

/// Returns whether this process ignores SIGHUP, as it does after a start with `nohup`.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 == 1)
}

/// Cancels the token at the first signal. The second one ends the program, unless it is ignored.
async fn cancel_on_signal(mut received: Signal, stop: StopSignal, code: u8, later: LaterSignals) {
    while received.recv().await.is_some() {
        match (stop.token.is_cancelled(), later) {
            (true, LaterSignals::Ignore) => continue,
            (true, LaterSignals::End) => restore_and_exit(code),
            (false, _) => {}
        }
        stop.code.store(code, Ordering::Relaxed);
        // Log first: the program may exit as soon as the token is cancelled.
        tracing::info!(exit_code = code, "signal.received");
        stop.token.cancel();
    }
}

/// Temporary file to remove when a signal ends the program.
static TEMP_FILE: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Sets the temporary file to remove when a signal ends the program; `None` for no file.
pub fn remove_file_on_exit(file: Option<PathBuf>) {
    *TEMP_FILE.lock() = file;
}

#[expect(
    clippy::exit,
    reason = "running tasks must not keep the program from exiting"
)]
/// Restores the terminal, removes the temporary file and ends the program.
fn restore_and_exit(code: u8) {
    bub_terminal::tty::restore();
    if let Some(file) = TEMP_FILE.lock().take() {
        let _ = std::fs::remove_file(file);
    }
    std::process::exit(i32::from(code));
}
