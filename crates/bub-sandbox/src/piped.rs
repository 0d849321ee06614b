//! A program that is talked to: its standard input and output are one socket, its standard error a pipe.

use std::{
    ffi::OsString,
    io::{self, BufRead, BufReader, PipeReader, Write},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};

use crate::{KILL, Launcher, PROCESS_NAME, SUBCOMMAND, TERMINATE, supervisor::PIPED_FLAG};

/// How long the supervisor may take to start a program.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How often the end of a program is looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// What is started, and how.
#[derive(Debug)]
pub struct PipedCommand<'a> {
    /// Without one the program runs unsupervised: it may survive a host that is killed.
    pub launcher: Option<&'a Launcher>,
    /// The program and its arguments.
    pub command: &'a [OsString],
    /// Where it runs.
    pub directory: &'a Path,
    /// All the variables it has.
    pub environment: Vec<(OsString, OsString)>,
}

/// A program that runs.
#[derive(Debug)]
pub struct PipedProcess {
    /// Its standard input and output.
    pub stream: UnixStream,
    /// Its standard error.
    pub errors: PipeReader,
    /// The means to end it.
    pub process_guard: ProcessGuard,
}

/// Ends a program with everything it started. Dropped, it does so at once.
#[derive(Debug)]
pub struct ProcessGuard {
    child: Child,
    /// The socket of the supervisor.
    control: Option<UnixStream>,
}

impl PipedCommand<'_> {
    /// Starts the program.
    pub fn start(self) -> io::Result<PipedProcess> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "there is no program to start",
            ));
        };
        // A program beside the manifest is meant, not one below the directory bub runs in.
        let beside = self.directory.join(program);
        let program = if program.to_string_lossy().contains('/') {
            beside
        } else {
            PathBuf::from(program)
        };
        let (stream, theirs) = UnixStream::pair()?;
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
            let input = theirs.try_clone()?;
            command.args(arguments).process_group(0);
            let child = command
                .stdin(OwnedFd::from(input))
                .stdout(OwnedFd::from(theirs))
                .spawn()?;
            return Ok(PipedProcess {
                stream,
                errors,
                process_guard: ProcessGuard {
                    child,
                    control: None,
                },
            });
        };
        let (own, control) = UnixStream::pair()?;
        command
            .arg0(PROCESS_NAME)
            .arg(SUBCOMMAND)
            .arg(PIPED_FLAG)
            .arg(program)
            .args(arguments);
        let child = command
            .stdin(OwnedFd::from(control))
            .stdout(OwnedFd::from(theirs))
            .spawn()?;
        // Its copies of the other ends would keep them open.
        drop(command);
        own.set_read_timeout(Some(START_TIMEOUT))?;
        let mut report = String::new();
        let mut reports = BufReader::new(own.try_clone()?);
        reports.read_line(&mut report)?;
        own.set_read_timeout(None)?;
        let process_guard = ProcessGuard {
            child,
            control: Some(own),
        };
        if let Some(group) = report.strip_prefix("started ") {
            let group = group.trim_end().parse().ok().and_then(Pid::from_raw);
            let talked = stream.try_clone()?;
            std::thread::Builder::new()
                .name("plugin-watch".to_owned())
                .spawn(move || watch(reports, group, &talked))?;
            return Ok(PipedProcess {
                stream,
                errors,
                process_guard,
            });
        }
        let cause = report
            .trim_end()
            .strip_prefix("failed ")
            .unwrap_or("its supervisor ended");
        Err(io::Error::other(cause.to_owned()))
    }
}

/// Waits for the end of the supervisor. One that ended before its program leaves that to us, as far as it is known.
fn watch(reports: impl BufRead, group: Option<Pid>, talked: &UnixStream) {
    // The number of a group that is gone may be another's.
    let is_over = reports
        .lines()
        .map_while(Result::ok)
        .any(|report| !report.is_empty());
    if let Some(group) = group.filter(|_| !is_over) {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
        // Whoever left the group may hold the other end open.
        let _ = talked.shutdown(std::net::Shutdown::Both);
    }
}

impl ProcessGuard {
    /// Asks every process of the program to end.
    pub fn terminate(&self) {
        self.send(TERMINATE, Signal::TERM);
    }

    /// Ends every process of the program.
    pub fn kill(&self) {
        self.send(KILL, Signal::KILL);
    }

    /// Waits until the program is gone, for so long; whether it is.
    pub fn wait_exit_timeout(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
                Ok(None) => return false,
                // An error means that there is nobody to wait for.
                Ok(Some(_)) | Err(_) => return true,
            }
        }
    }

    fn send(&self, order: u8, signal: Signal) {
        match &self.control {
            // An order that cannot be given is for a supervisor that is gone.
            Some(control) => drop((&mut &*control).write(&[order])),
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
        // A supervisor is done as soon as what it watched is gone.
        let _ = self.child.wait();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::{io::Read as _, os::unix::net::UnixStream};

    use super::*;

    fn talk(script: &str) -> PipedProcess {
        let command = ["sh", "-c", script].map(OsString::from);
        let directory = std::env::temp_dir();
        let environment = vec![("PATH".into(), "/usr/bin:/bin".into())];
        PipedCommand {
            launcher: None,
            command: &command,
            directory: &directory,
            environment,
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
        let mut piped_process = talk("read word; echo heard $word; echo said >&2");
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
    fn a_dropped_leash_ends_a_program_that_ignores_requests() {
        let piped_process = talk("trap '' TERM HUP; sleep 1000 & echo ready; wait; wait");
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
        // Nobody holds the other end open any more.
        assert_eq!(read(&stream), "");
    }
}
