//! Watches a confined command from the supervisor, or from the process that runs it without one.
//!
//! A process with a new process namespace cannot start threads, so one loop waits for bub and for the command.

use std::{
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    time::Instant,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, set_parent_process_death_signal},
};

use nix::sys::{
    signal::{SigSet, Signal as NixSignal},
    signalfd::{SfdFlags, SignalFd},
};

use crate::supervisor::{EXIT_GRACE_PERIOD, KILL, signal_descendants};

/// What the process that watches a command is asked to do.
enum Request {
    Nothing,
    /// Send `SIGTERM` to all processes of the command.
    Terminate,
    /// Terminate the command, and kill it after a grace period.
    End,
    /// Kill the command.
    Kill,
}

/// Waits until the first process of the command has ended, and with it all others. Handles the control bytes that bub
/// sends. When bub exits, ends the command.
pub(crate) fn watch(mut control: &UnixStream, first: Pid) -> io::Result<()> {
    let mut byte = [0];
    wait(first, control.as_fd(), || match control.read(&mut byte) {
        Ok(1) if byte == [KILL] => Ok(Request::Kill),
        Ok(1) => Ok(Request::Terminate),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Request::Nothing),
        _ => Ok(Request::End),
    })
}

/// Waits until the first process of the command has ended. When `source` is ready, does what `read` returns.
fn wait(
    first: Pid,
    source: BorrowedFd<'_>,
    mut read: impl FnMut() -> io::Result<Request>,
) -> io::Result<()> {
    let process = pidfd_open(first, PidfdFlags::empty())?;
    let mut deadline: Option<Instant> = None;
    loop {
        let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = remaining.and_then(|remaining| Timespec::try_from(remaining).ok());
        let mut sources = vec![PollFd::new(&process, PollFlags::IN)];
        if deadline.is_none() {
            sources.push(PollFd::new(&source, PollFlags::IN));
        }
        match poll(&mut sources, timeout.as_ref()) {
            Ok(0) => kill_process(first, Signal::KILL)?,
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready =
            |source: Option<&PollFd<'_>>| source.is_some_and(|fd| !fd.revents().is_empty());
        if is_ready(sources.first()) {
            return Ok(());
        }
        if !is_ready(sources.get(1)) {
            continue;
        }
        match read()? {
            Request::Nothing => {}
            Request::Terminate => drop(signal_descendants(Signal::TERM)),
            Request::Kill => kill_process(first, Signal::KILL)?,
            Request::End => {
                signal_descendants(Signal::TERM);
                deadline = Some(Instant::now() + EXIT_GRACE_PERIOD);
            }
        }
    }
}

/// Signals that would end this process before it has restored the workspace. It reads them instead.
pub(crate) struct EndSignals(SignalFd);

impl EndSignals {
    /// Blocks the signals for this process. The end of its parent becomes one of them.
    pub(crate) fn block() -> io::Result<Self> {
        let mut signals = SigSet::empty();
        for signal in [
            NixSignal::SIGHUP,
            NixSignal::SIGINT,
            NixSignal::SIGQUIT,
            NixSignal::SIGTERM,
        ] {
            signals.add(signal);
        }
        signals.thread_block()?;
        set_parent_process_death_signal(Some(Signal::TERM))?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self(SignalFd::with_flags(&signals, flags)?))
    }

    /// Waits until the first process of the command has ended. After a signal, ends the command. A terminal sends the
    /// signals of its keys to the command, too.
    pub(crate) fn watch(&self, first: Pid) -> io::Result<()> {
        let keys = [Signal::INT, Signal::QUIT].map(|signal| signal.as_raw().cast_unsigned());
        wait(first, self.0.as_fd(), || {
            let signal = self.0.read_signal()?;
            let is_end = signal.is_some_and(|signal| !keys.contains(&signal.ssi_signo));
            Ok(if is_end {
                Request::End
            } else {
                Request::Nothing
            })
        })
    }
}
