//! Starting a command, watching it, ending it: under the supervisor, or directly where there is none.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdStream},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use bub_sandbox::{KILL, PROCESS_NAME, SUBCOMMAND, TERMINATE};
use rustix::process::{Pid, Signal};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf, pipe::Receiver},
    },
    process::{Child, Command},
};

/// How often a group without a supervisor is looked at.
const GROUP_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How a command's shell ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// Killed, as somebody had killed its supervisor.
    Unwatched,
}

impl Exit {
    /// One number for both: a signal is negative.
    pub fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => -signal,
            Self::Unwatched => -Signal::KILL.as_raw(),
        }
    }
}

/// What is started, and how.
pub(super) struct SpawnRequest<'a> {
    pub(super) launcher: Option<&'a Path>,
    pub(super) shell: PathBuf,
    pub(super) command: &'a str,
    pub(super) directory: Option<&'a Path>,
    pub(super) environment: Vec<(OsString, OsString)>,
}

/// A command that runs: its end, the means to end it, its output.
pub(super) struct Process {
    pub(super) watch: ProcessWatcher,
    pub(super) control: ProcessControl,
    pub(super) output: Receiver,
}

/// Learns what becomes of a command.
pub(super) struct ProcessWatcher {
    child: Child,
    /// Not known of a command that killed its supervisor at once.
    group: Option<Pid>,
    reports: Option<Lines<BufReader<OwnedReadHalf>>>,
}

/// Ends a command. Dropped, it ends it at once: so does the closed socket.
pub(super) enum ProcessControl {
    Supervised(OwnedWriteHalf),
    Direct(Option<Pid>),
}

impl SpawnRequest<'_> {
    pub(super) async fn start(self) -> io::Result<Process> {
        let (reader, writer) = io::pipe()?;
        let output = Receiver::from_owned_fd(OwnedFd::from(reader))?;
        let mut command = match self.launcher {
            Some(launcher) => Command::new(launcher),
            None => Command::new(&self.shell),
        };
        command
            .env_clear()
            .envs(self.environment)
            .stdout(writer.try_clone()?)
            .stderr(writer);
        if let Some(directory) = self.directory {
            command.current_dir(directory);
        }
        if self.launcher.is_none() {
            let child = command
                .arg("-c")
                .arg(self.command)
                .stdin(Stdio::null())
                .process_group(0)
                .spawn()?;
            let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
            let group =
                group.ok_or_else(|| io::Error::other("the system gave the process no number"))?;
            let watch = ProcessWatcher {
                child,
                group: Some(group),
                reports: None,
            };
            return Ok(Process {
                watch,
                control: ProcessControl::Direct(Some(group)),
                output,
            });
        }
        let (own, theirs) = StdStream::pair()?;
        own.set_nonblocking(true)?;
        command
            .arg0(PROCESS_NAME)
            .arg(SUBCOMMAND)
            .arg(self.shell)
            .arg(self.command)
            .stdin(OwnedFd::from(theirs));
        let child = command.spawn()?;
        // Its copies of the other ends would keep them open.
        drop(command);
        let (reports, orders) = UnixStream::from_std(own)?.into_split();
        let mut reports = BufReader::new(reports).lines();
        let first = reports.next_line().await?.unwrap_or_default();
        let group = first
            .strip_prefix("started ")
            .and_then(|group| Pid::from_raw(group.parse().ok()?));
        let mut watch = ProcessWatcher {
            child,
            group,
            reports: Some(reports),
        };
        if group.is_none() && !watch.handle_supervisor_loss().await {
            let reason = first
                .strip_prefix("failed ")
                .unwrap_or("its supervisor ended");
            return Err(io::Error::other(reason.to_owned()));
        }
        Ok(Process {
            watch,
            control: ProcessControl::Supervised(orders),
            output,
        })
    }
}

impl ProcessWatcher {
    /// Waits for the shell's end, and says whether it was surely the last process.
    pub(super) async fn exited(&mut self) -> (Exit, bool) {
        let killed = Exit::Signal(Signal::KILL.as_raw());
        let Some(reports) = &mut self.reports else {
            return (self.child.wait().await.map_or(killed, Exit::from), false);
        };
        let report = reports.next_line().await.ok().flatten();
        if let Some(exit) = report.as_deref().and_then(Exit::from_report) {
            return exit;
        }
        self.handle_supervisor_loss().await;
        (Exit::Unwatched, false)
    }

    /// The supervisor is gone too early: what it watched is not to run unwatched. Whether somebody killed it.
    async fn handle_supervisor_loss(&mut self) -> bool {
        if let Some(group) = self.group {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        // Its number is nobody else's before it is waited for.
        if let Some(supervisor) = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()))
        {
            kill_session(supervisor);
        }
        self.child
            .wait()
            .await
            .is_ok_and(|status| matches!(Exit::from(status), Exit::Signal(_)))
    }

    /// Waits until no process of the command is left.
    pub(super) async fn wait_gone(&mut self) {
        match &mut self.reports {
            Some(reports) => {
                while let Ok(Some(_)) = reports.next_line().await {}
                let _ = self.child.wait().await;
            }
            None => {
                while self
                    .group
                    .is_some_and(|group| rustix::process::test_kill_process_group(group).is_ok())
                {
                    tokio::time::sleep(GROUP_POLL_INTERVAL).await;
                }
            }
        }
    }
}

impl ProcessControl {
    pub(super) fn terminate(&self) {
        self.send(TERMINATE, Signal::TERM);
    }

    pub(super) fn kill(&self) {
        self.send(KILL, Signal::KILL);
    }

    /// No process is left, and the number of the group is free for others.
    pub(super) fn release(mut self) {
        if let Self::Direct(group) = &mut self {
            *group = None;
        }
    }

    fn send(&self, order: u8, signal: Signal) {
        // An order that cannot be given is for a supervisor that is gone.
        match self {
            Self::Supervised(orders) => drop(orders.try_write(&[order])),
            Self::Direct(Some(group)) => {
                let _ = rustix::process::kill_process_group(*group, signal);
                let _ = rustix::process::kill_process_group(*group, Signal::CONT);
            }
            Self::Direct(None) => {}
        }
    }
}

impl Drop for ProcessControl {
    fn drop(&mut self) {
        if matches!(self, Self::Direct(_)) {
            self.kill();
        }
    }
}

/// Kills whatever a supervisor's session still has, where the system tells: also what is in no known group.
fn kill_session(supervisor: Pid) {
    let mut killed = BTreeSet::new();
    loop {
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        let own = pids.filter(|pid| session_of(*pid) == Some(supervisor));
        let new: Vec<_> = own
            .filter(|pid| killed.insert(pid.as_raw_nonzero()))
            .collect();
        if new.is_empty() {
            return;
        }
        for pid in new {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

/// The fourth field after the name; not by `getsid`, which cannot say that a process has none.
fn session_of(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    Pid::from_raw(stat.rsplit_once(") ")?.1.split(' ').nth(3)?.parse().ok()?)
}

impl Exit {
    fn from_report(report: &str) -> Option<(Self, bool)> {
        let mut words = report.split(' ');
        let is_signal = words.next()? == "signalled";
        let number = words.next()?.parse().ok()?;
        Some((
            if is_signal {
                Self::Signal(number)
            } else {
                Self::Code(number)
            },
            words.next() == Some("alone"),
        ))
    }
}

impl From<std::process::ExitStatus> for Exit {
    fn from(status: std::process::ExitStatus) -> Self {
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        signal.map_or_else(
            || Self::Code(status.code().unwrap_or_default()),
            Self::Signal,
        )
    }
}
