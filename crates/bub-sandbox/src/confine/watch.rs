//! Watches a confined command from the supervisor, or from the process that runs it without one.
//!
//! A process with a new process namespace cannot start threads, so one loop waits for bub and for the command.

use std::{
    io::{self, Read},
    os::unix::net::UnixStream,
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

/// Waits until the first process of the command has ended, and with it all others. Handles the control bytes that bub
/// sends. When bub exits, ends the command.
pub(crate) fn watch(mut control: &UnixStream, first: Pid) -> io::Result<()> {
    let process = pidfd_open(first, PidfdFlags::empty())?;
    let mut deadline: Option<Instant> = None;
    let mut byte = [0];
    loop {
        let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = remaining.and_then(|remaining| Timespec::try_from(remaining).ok());
        let mut sources = vec![PollFd::new(&process, PollFlags::IN)];
        if deadline.is_none() {
            sources.push(PollFd::new(&control, PollFlags::IN));
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
        match control.read(&mut byte) {
            Ok(1) if byte == [KILL] => kill_process(first, Signal::KILL)?,
            Ok(1) => drop(signal_descendants(Signal::TERM)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => {
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
        let process = pidfd_open(first, PidfdFlags::empty())?;
        let mut deadline: Option<Instant> = None;
        loop {
            let remaining =
                deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let timeout = remaining.and_then(|remaining| Timespec::try_from(remaining).ok());
            let mut sources = [
                PollFd::new(&process, PollFlags::IN),
                PollFd::new(&self.0, PollFlags::IN),
            ];
            match poll(&mut sources, timeout.as_ref()) {
                Ok(0) => kill_process(first, Signal::KILL)?,
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if sources
                .first()
                .is_some_and(|source| !source.revents().is_empty())
            {
                return Ok(());
            }
            while let Some(signal) = self.0.read_signal()? {
                let is_key = [Signal::INT, Signal::QUIT]
                    .iter()
                    .any(|key| u32::try_from(key.as_raw()) == Ok(signal.ssi_signo));
                if !is_key && deadline.is_none() {
                    signal_descendants(Signal::TERM);
                    deadline = Some(Instant::now() + EXIT_GRACE_PERIOD);
                }
            }
        }
    }
}
