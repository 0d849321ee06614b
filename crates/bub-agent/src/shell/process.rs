//! Starts, watches and ends the processes of a command, with or without the supervisor.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdStream},
    path::Path,
    process::Stdio,
    time::Duration,
};

use bub_sandbox::{KILL, Launcher, PROCESS_NAME, SUBCOMMAND, TERMINATE};
use rustix::process::{Pid, Signal};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf, pipe::Receiver},
    },
    process::{Child, Command},
};

use super::ShellRequest;

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
    /// Unknown, because the environment of the command failed.
    Lost,
}

impl Exit {
    /// Returns the exit code, or the negated signal number.
    pub fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => -signal,
            Self::Unwatched | Self::Lost => -Signal::KILL.as_raw(),
        }
    }

    /// Parses a report of the supervisor. The flag is true if no other process of the command was running.
    fn from_report(report: &str) -> Option<(Self, bool)> {
        let mut words = report.split(' ');
        let exit = match words.next()? {
            "signalled" => Self::Signal,
            _ => Self::Code,
        };
        let number = words.next()?.parse().ok()?;
        Some((exit(number), words.next() == Some("alone")))
    }
}

/// A running command.
pub(super) struct Process {
    pub(super) watch: ProcessWatcher,
    pub(super) control: ProcessControl,
    pub(super) output: Receiver,
}

/// Waits for the exit of a command's shell and of all other processes of the command.
pub(super) struct ProcessWatcher {
    child: Child,
    /// The process group of the command. `None` if the command killed its supervisor before the supervisor reported the
    /// group.
    group: Option<Pid>,
    /// Status lines from the supervisor. `None` if the command runs without a supervisor.
    reports: Option<Lines<BufReader<OwnedReadHalf>>>,
}

/// Ends a command. Dropping the control kills the command. With a supervisor, the drop closes the socket to the
/// supervisor, which then kills the command.
pub(super) enum ProcessControl {
    Supervised(OwnedWriteHalf),
    Direct(Option<Pid>),
}

impl Process {
    /// Starts a command in `shell`, under the supervisor if there is a launcher.
    pub(super) async fn spawn(
        request: &ShellRequest,
        launcher: Option<&Launcher>,
        shell: &Path,
        environment: Vec<(OsString, OsString)>,
    ) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let output = Receiver::from_owned_fd(OwnedFd::from(reader))?;
        let mut command = Command::new(launcher.map_or(shell, |launcher| &launcher.0));
        command
            .env_clear()
            .envs(environment)
            .stdout(writer.try_clone()?)
            .stderr(writer);
        if let Some(directory) = &request.directory {
            command.current_dir(directory);
        }
        if launcher.is_none() {
            if request.confinement.is_some() {
                return Err(io::Error::other(
                    "without a supervisor, it cannot be confined",
                ));
            }
            let child = command
                .arg("-c")
                .arg(&request.command)
                .stdin(Stdio::null())
                .process_group(0)
                .spawn()?;
            let group = process_id(&child);
            let group =
                group.ok_or_else(|| io::Error::other("the child process has no process id"))?;
            let watch = ProcessWatcher {
                child,
                group: Some(group),
                reports: None,
            };
            return Ok(Self {
                watch,
                control: ProcessControl::Direct(Some(group)),
                output,
            });
        }
        let (socket, child_socket) = StdStream::pair()?;
        socket.set_nonblocking(true)?;
        command.arg0(PROCESS_NAME).arg(SUBCOMMAND);
        if let Some(confinement) = &request.confinement {
            command.args(confinement.to_args()?);
        }
        command
            .arg(shell)
            .arg(&request.command)
            .stdin(OwnedFd::from(child_socket));
        let child = command.spawn()?;
        // `command` holds copies of the child's ends of the pipe and the socket. Close them, or bub would not notice
        // when the child closes its own.
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
        // A supervisor that reported why it failed may still be running, and is then killed.
        let reason = first.strip_prefix("failed ");
        if group.is_none() && (!watch.handle_supervisor_loss().await || reason.is_some()) {
            let reason = reason.unwrap_or("its supervisor process exited early; try again");
            return Err(io::Error::other(reason.to_owned()));
        }
        Ok(Self {
            watch,
            control: ProcessControl::Supervised(requests),
            output,
        })
    }
}

impl ProcessWatcher {
    /// Waits until the shell exits, and returns how it exited. The flag is true if the supervisor reported that no
    /// other process of the command was running.
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
        if let Some(supervisor) = process_id(&self.child) {
            kill_process_session(supervisor);
        }
        let status = self.child.wait().await;
        status.is_ok_and(|status| matches!(Exit::from(status), Exit::Signal(_)))
    }

    /// Waits until all processes of the command are gone.
    pub(super) async fn wait_all_exited(&mut self) {
        if let Some(reports) = &mut self.reports {
            while let Ok(Some(_)) = reports.next_line().await {}
            let _ = self.child.wait().await;
            return;
        }
        let exists = |group| rustix::process::test_kill_process_group(group).is_ok();
        while self.group.is_some_and(exists) {
            tokio::time::sleep(GROUP_POLL_INTERVAL).await;
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

    /// Drops the control without sending a signal. Call it when all processes are gone, because the system may reuse
    /// the group id.
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

fn process_id(child: &Child) -> Option<Pid> {
    Pid::from_raw(child.id()?.cast_signed())
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

/// Returns the operating system session of a process, or `None` if it has none. Reads `/proc/PID/stat`, because
/// `getsid` cannot report that a process has no session.
fn process_session(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    Pid::from_raw(stat.rsplit_once(") ")?.1.split(' ').nth(3)?.parse().ok()?)
}

impl From<std::process::ExitStatus> for Exit {
    fn from(status: std::process::ExitStatus) -> Self {
        match std::os::unix::process::ExitStatusExt::signal(&status) {
            Some(signal) => Self::Signal(signal),
            None => Self::Code(status.code().unwrap_or_default()),
        }
    }
}
