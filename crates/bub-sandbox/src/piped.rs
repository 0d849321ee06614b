//! Programs that bub talks to over stdin and stdout, which are one socket. Their stderr is a pipe.

use std::{
    ffi::OsString,
    io::{self, BufRead, BufReader, PipeReader, Write},
    os::{
        fd::OwnedFd,
        unix::{
            net::UnixStream,
            process::{CommandExt, ExitStatusExt},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};

use crate::{
    Confinement, KILL, Launcher, PROCESS_NAME, SUBCOMMAND, TERMINATE, supervisor::PIPED_FLAG,
};

/// Timeout for the supervisor to report that it started the program.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How often [`ProcessGuard::wait_exit_timeout`] checks whether the program exited.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A program to start, with its directory and environment.
#[derive(Debug)]
pub struct PipedCommand<'a> {
    /// The executable that supervises the program. With `None`, the program may survive if bub is killed.
    pub launcher: Option<&'a Launcher>,
    /// The program and its arguments.
    pub command: &'a [OsString],
    /// The working directory. A program path that contains a slash is relative to it.
    pub directory: &'a Path,
    /// The complete environment; the program inherits no other variables.
    pub environment: Vec<(OsString, OsString)>,
    /// What the program may reach. Needs a launcher. With `None`, the program has all rights of bub.
    pub confinement: Option<Confinement>,
}

/// A running program.
#[derive(Debug)]
pub struct PipedProcess {
    /// The program's stdin and stdout.
    pub stream: UnixStream,
    /// The program's stderr.
    pub errors: PipeReader,
    /// The guard that ends the program.
    pub process_guard: ProcessGuard,
}

/// Guard that ends a program and all processes it started. Dropping it kills them immediately.
#[derive(Debug)]
pub struct ProcessGuard {
    child: Child,
    /// The control socket of the supervisor; `None` if the program runs without one.
    control: Option<UnixStream>,
    /// Returns how the program exited, as the supervisor reports it.
    watcher: Option<JoinHandle<Option<i32>>>,
}

impl PipedCommand<'_> {
    /// Starts the program.
    ///
    /// # Errors
    ///
    /// Fails if `command` is empty, or if the program or its supervisor cannot be started.
    pub fn start(self) -> io::Result<PipedProcess> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the command is empty",
            ));
        };
        // A relative path means a file next to the plugin manifest, not one below bub's working directory.
        let in_directory = self.directory.join(program);
        let program = if program.to_string_lossy().contains('/') {
            in_directory
        } else {
            PathBuf::from(program)
        };
        let (stream, child_stream) = UnixStream::pair()?;
        let (errors, error_writer) = io::pipe()?;
        let mut command = Command::new(
            self.launcher
                .map_or(program.as_path(), |launcher| &launcher.0),
        );
        command
            .env_clear()
            .envs(self.environment)
            .current_dir(self.directory)
            .stderr(error_writer);
        let Some(_) = self.launcher else {
            let input = child_stream.try_clone()?;
            command.args(arguments).process_group(0);
            let child = command
                .stdin(OwnedFd::from(input))
                .stdout(OwnedFd::from(child_stream))
                .spawn()?;
            return Ok(PipedProcess {
                stream,
                errors,
                process_guard: ProcessGuard {
                    child,
                    control: None,
                    watcher: None,
                },
            });
        };
        let (control, supervisor_control) = UnixStream::pair()?;
        command.arg0(PROCESS_NAME).arg(SUBCOMMAND);
        if let Some(confinement) = &self.confinement {
            command.args(confinement.to_args()?);
        }
        command.arg(PIPED_FLAG).arg(program).args(arguments);
        let child = command
            .stdin(OwnedFd::from(supervisor_control))
            .stdout(OwnedFd::from(child_stream))
            .spawn()?;
        // `command` holds copies of the child's ends of the sockets. The copies would keep the sockets open after the
        // child exits.
        drop(command);
        control.set_read_timeout(Some(START_TIMEOUT))?;
        let mut report = String::new();
        let mut reports = BufReader::new(control.try_clone()?);
        reports.read_line(&mut report)?;
        control.set_read_timeout(None)?;
        let mut process_guard = ProcessGuard {
            child,
            control: Some(control),
            watcher: None,
        };
        if let Some(group) = report.strip_prefix("started ") {
            let group = group.trim_end().parse().ok().and_then(Pid::from_raw);
            let watched_stream = stream.try_clone()?;
            let watcher = std::thread::Builder::new()
                .name("plugin-watch".to_owned())
                .spawn(move || watch_supervisor(reports, group, &watched_stream))?;
            process_guard.watcher = Some(watcher);
            return Ok(PipedProcess {
                stream,
                errors,
                process_guard,
            });
        }
        let reason = report
            .trim_end()
            .strip_prefix("failed ")
            .unwrap_or("the supervisor exited before it started the program");
        Err(io::Error::other(reason.to_owned()))
    }
}

/// Waits until the program or its supervisor exits. If the supervisor exits first, kills the process group of the
/// program. Returns how the program exited.
fn watch_supervisor(reports: impl BufRead, group: Option<Pid>, stream: &UnixStream) -> Option<i32> {
    let mut reports = reports.lines().map_while(Result::ok);
    let report = reports.find(|report| !report.is_empty());
    // Do not kill the group after the program exited: another process group may have its number.
    let has_exited = report.is_some();
    if let Some(group) = group.filter(|_| !has_exited) {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
        // Processes that left the group may keep the other end of the socket open.
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
    report.as_deref().and_then(parse_exit)
}

/// Returns the exit code in a report of the supervisor, or the negated number of a signal.
fn parse_exit(report: &str) -> Option<i32> {
    let mut words = report.split(' ');
    let kind = words.next()?;
    let number: i32 = words.next()?.parse().ok()?;
    Some(if kind == "signalled" { -number } else { number })
}

impl ProcessGuard {
    /// Waits until the program has exited or `timeout` has passed. Returns its exit code, or the negated number of the
    /// signal that killed it. Returns `None` if it has not exited or this is unknown, and at further calls.
    pub fn wait_exit_code(&mut self, timeout: Duration) -> Option<i32> {
        if !self.wait_exit_timeout(timeout) {
            return None;
        }
        if self.control.is_some() {
            return self.watcher.take()?.join().ok().flatten();
        }
        let status = self.child.try_wait().ok().flatten()?;
        let signal = || status.signal().map(|number| -number);
        status.code().or_else(signal)
    }

    /// Sends `SIGTERM` to every process of the program.
    pub fn terminate(&self) {
        self.send_control_byte(TERMINATE, Signal::TERM);
    }

    /// Kills every process of the program.
    pub fn kill(&self) {
        self.send_control_byte(KILL, Signal::KILL);
    }

    /// Blocks until the program has exited or `timeout` has passed. Returns whether it has exited.
    pub fn wait_exit_timeout(&mut self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
                Ok(None) => return false,
                // An error means that the child was already reaped.
                Ok(Some(_)) | Err(_) => return true,
            }
        }
    }

    fn send_control_byte(&self, byte: u8, signal: Signal) {
        match &self.control {
            // Ignore errors: writing fails only after the supervisor exited.
            Some(control) => drop((&mut &*control).write(&[byte])),
            None => {
                if let Some(group) = Pid::from_raw(self.child.id().cast_signed()) {
                    let _ = rustix::process::kill_process_group(group, signal);
                }
            }
        }
    }
}

impl Drop for ProcessGuard {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        self.kill();
        // The supervisor exits as soon as all processes of the program have ended.
        let _ = self.child.wait();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::{io::Read as _, os::unix::net::UnixStream};

    use super::*;

    fn start(script: &str) -> PipedProcess {
        let command = ["sh", "-c", script].map(OsString::from);
        let directory = std::env::temp_dir();
        let environment = vec![("PATH".into(), "/usr/bin:/bin".into())];
        PipedCommand {
            launcher: None,
            command: &command,
            directory: &directory,
            environment,
            confinement: None,
        }
        .start()
        .unwrap()
    }

    fn read(mut stream: &UnixStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn input_and_output_are_one_socket() {
        let mut piped_process = start("read word; echo heard $word; echo said >&2");
        piped_process.stream.write_all(b"hello\n").unwrap();
        assert_eq!(read(&piped_process.stream), "heard hello\n");
        let mut errors = String::new();
        piped_process.errors.read_to_string(&mut errors).unwrap();
        assert_eq!(errors, "said\n");
        assert!(
            piped_process
                .process_guard
                .wait_exit_timeout(Duration::from_secs(5))
        );
    }

    #[test]
    fn a_dropped_guard_ends_a_program_that_ignores_requests() {
        let piped_process = start("trap '' TERM HUP; sleep 1000 & echo ready; wait; wait");
        let mut ready = String::new();
        BufReader::new(&piped_process.stream)
            .read_line(&mut ready)
            .unwrap();
        assert_eq!(ready, "ready\n");
        let PipedProcess {
            stream,
            process_guard,
            ..
        } = piped_process;
        drop(process_guard);
        // No process keeps the other end open.
        assert_eq!(read(&stream), "");
    }
}
