//! Watches a confined command from the supervisor.
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
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
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
