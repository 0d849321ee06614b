//! Starts, watches and ends the processes of a command, with or without the supervisor.

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

/// How often bub checks whether a process group without a supervisor still exists.
const GROUP_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How the shell of a command exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Exited with this code.
    Code(i32),
    /// Killed by this signal.
    Signal(i32),
    /// Killed after its supervisor was killed.
    Unwatched,
}

impl Exit {
    /// Returns the exit code, or the negated signal number.
    pub fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => -signal,
            Self::Unwatched => -Signal::KILL.as_raw(),
        }
    }
}

/// A command to start.
pub(super) struct SpawnRequest<'a> {
    pub(super) launcher: Option<&'a Path>,
    pub(super) shell: PathBuf,
    pub(super) command: &'a str,
    pub(super) directory: Option<&'a Path>,
    pub(super) environment: Vec<(OsString, OsString)>,
}

/// A running command.
pub(super) struct Process {
    pub(super) watch: ProcessWatcher,
    pub(super) control: ProcessControl,
    pub(super) output: Receiver,
}

/// Waits for the exit of a command and of its processes.
pub(super) struct ProcessWatcher {
    child: Child,
    /// The process group of the command. `None` if the command killed its supervisor before the supervisor reported the
    /// group.
    group: Option<Pid>,
    /// Status lines from the supervisor. `None` if the command runs without a supervisor.
    reports: Option<Lines<BufReader<OwnedReadHalf>>>,
}

/// Ends a command. Dropping the control kills the command: directly, or through the supervisor, which kills the command
/// when the socket closes.
pub(super) enum ProcessControl {
    Supervised(OwnedWriteHalf),
    Direct(Option<Pid>),
}

impl SpawnRequest<'_> {
    /// Starts the command, under the supervisor if there is a launcher.
    pub(super) async fn spawn(self) -> io::Result<Process> {
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
                group.ok_or_else(|| io::Error::other("the child process has no process id"))?;
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
        let (socket, child_socket) = StdStream::pair()?;
        socket.set_nonblocking(true)?;
        command
            .arg0(PROCESS_NAME)
            .arg(SUBCOMMAND)
            .arg(self.shell)
            .arg(self.command)
            .stdin(OwnedFd::from(child_socket));
        let child = command.spawn()?;
        // `command` holds copies of the child's ends of pipe and socket, which would keep them open.
        drop(command);
        let (reports, requests) = UnixStream::from_std(socket)?.into_split();
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
                .unwrap_or("its supervisor process exited early; try again");
            return Err(io::Error::other(reason.to_owned()));
        }
        Ok(Process {
            watch,
            control: ProcessControl::Supervised(requests),
            output,
        })
    }
}

impl ProcessWatcher {
    /// Waits until the shell exits. The flag is true if the supervisor reported that no other process of the command was
    /// running.
    pub(super) async fn wait_exit(&mut self) -> (Exit, bool) {
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

    /// Kills all processes of a command whose supervisor exited early, so that no process runs without a supervisor.
    /// Returns whether a signal killed the supervisor.
    async fn handle_supervisor_loss(&mut self) -> bool {
        if let Some(group) = self.group {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        // The system does not reuse the process id until `wait` has returned.
        if let Some(supervisor) = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()))
        {
            kill_process_session(supervisor);
        }
        self.child
            .wait()
            .await
            .is_ok_and(|status| matches!(Exit::from(status), Exit::Signal(_)))
    }

    /// Waits until all processes of the command are gone.
    pub(super) async fn wait_all_exited(&mut self) {
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
        self.send_signal(TERMINATE, Signal::TERM);
    }

    pub(super) fn kill(&self) {
        self.send_signal(KILL, Signal::KILL);
    }

    /// Drops the control without sending a signal. Call it when all processes are gone, because the system may reuse the
    /// group id.
    pub(super) fn release(mut self) {
        if let Self::Direct(group) = &mut self {
            *group = None;
        }
    }

    fn send_signal(&self, request: u8, signal: Signal) {
        match self {
            // A write fails only if the supervisor is gone.
            Self::Supervised(requests) => drop(requests.try_write(&[request])),
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

/// Kills all processes in the operating system session of a supervisor, also those outside its process group. Does
/// nothing without `/proc`.
fn kill_process_session(supervisor: Pid) {
    let mut killed = BTreeSet::new();
    loop {
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        let members = pids.filter(|pid| process_session(*pid) == Some(supervisor));
        let new: Vec<_> = members
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

/// Returns the operating system session of a process, or `None` if it has none. Reads `/proc/PID/stat`, because `getsid`
/// cannot report that a process has no session.
fn process_session(pid: Pid) -> Option<Pid> {
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
