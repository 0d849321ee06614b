//! Writes results to stdout, a pager or a file. Redacts secrets.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{self, BufWriter, IsTerminal, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use bub_settings::{RedactingWriter, Settings};
use bub_tape::{Result, TapeError};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Options of `less` if `LESS` is not set: quit if the text fits on one screen, show colors, do not clear the screen.
const DEFAULT_LESS: &str = "FRX";

/// An open output. Write complete lines only, and call [`finish`](Self::finish) after the last one.
pub(super) struct ResultWriter {
    writer: RedactingWriter<Box<dyn Write + Send>>,
    target: OutputTarget,
}

enum OutputTarget {
    Stdout,
    /// A pager. While it runs, bub ignores Ctrl-C: if bub ended first, the pager and the shell would both read from the
    /// terminal.
    Pager(OsString, Child, Option<Signal>),
    File(PathBuf),
}

impl ResultWriter {
    /// Creates a writer to stdout.
    pub(super) fn for_stdout(settings: &Settings) -> Self {
        Self::new(settings, Box::new(io::stdout()), OutputTarget::Stdout)
    }

    /// Creates a writer to the user's pager, or to stdout if that is not a terminal.
    pub(super) fn for_pager(settings: &Settings) -> Self {
        let Some((name, mut child)) = start_pager(settings) else {
            return Self::for_stdout(settings);
        };
        match child.stdin.take() {
            Some(stdin) => {
                let interrupt = signal(SignalKind::interrupt()).ok();
                Self::new(
                    settings,
                    Box::new(stdin),
                    OutputTarget::Pager(name, child, interrupt),
                )
            }
            None => Self::for_stdout(settings),
        }
    }

    /// Creates a file that only the user can read, like a tape. Fails if the file exists.
    pub(super) fn create_file(settings: &Settings, path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path);
        let file: File = file.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => TapeError::InvalidInput(format!(
                "file `{}` already exists; choose another file",
                path.display()
            )),
            _ => TapeError::from_io("write", path, error),
        })?;
        Ok(Self::new(
            settings,
            Box::new(file),
            OutputTarget::File(path.to_owned()),
        ))
    }

    fn new(settings: &Settings, writer: Box<dyn Write + Send>, target: OutputTarget) -> Self {
        let buffered: Box<dyn Write + Send> = Box::new(BufWriter::with_capacity(64 * 1024, writer));
        Self {
            writer: settings.redactor().writer(buffered),
            target,
        }
    }

    /// Writes text. Returns `false` if the reader has closed the pipe, as in `bub … | head`.
    pub(super) fn write(&mut self, text: &str) -> Result<bool> {
        let outcome = self.writer.write_all(text.as_bytes());
        self.check_write(outcome)
    }

    /// Flushes the output and waits for the pager, if any.
    pub(super) fn finish(mut self) -> Result<()> {
        let outcome = self.writer.flush();
        self.check_write(outcome)?;
        drop(self.writer);
        if let OutputTarget::Pager(name, mut child, interrupt) = self.target {
            let status = child.wait();
            drop(interrupt);
            // Exit code of a shell for an unknown command.
            if status.is_ok_and(|status| status.code() == Some(127)) {
                let name = name.to_string_lossy().into_owned();
                let source = io::Error::new(
                    io::ErrorKind::NotFound,
                    "command not found; set PAGER to another command or to `cat`",
                );
                return Err(TapeError::Io {
                    action: "start the pager",
                    path: name,
                    source: source.into(),
                });
            }
        }
        Ok(())
    }

    fn check_write(&self, outcome: io::Result<()>) -> Result<bool> {
        match outcome {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => {
                let path = match &self.target {
                    OutputTarget::File(path) => path,
                    OutputTarget::Stdout | OutputTarget::Pager(..) => Path::new("stdout"),
                };
                Err(TapeError::from_io("write", path, error))
            }
        }
    }
}

/// Starts the pager from `PAGER`, default `less`. Returns `None` without a terminal or if the pager does not start.
fn start_pager(settings: &Settings) -> Option<(OsString, Child)> {
    let environment = settings.environment();
    let is_dumb = environment
        .get("TERM")
        .is_none_or(|term| term.is_empty() || term == "dumb");
    if is_dumb || !io::stdout().is_terminal() {
        return None;
    }
    let mut command = match environment.get("PAGER").map(ToOwned::to_owned) {
        Some(pager) if pager.is_empty() || pager == "cat" => return None,
        Some(pager) => {
            let mut shell = Command::new("sh");
            shell.arg("-c").arg(&pager);
            (pager, shell)
        }
        None => ("less".into(), Command::new("less")),
    };
    command
        .1
        .env_clear()
        .envs(settings.child_environment())
        .stdin(Stdio::piped());
    if environment.get("LESS").is_none() {
        command.1.env("LESS", DEFAULT_LESS);
    }
    // Without a pager, the output goes to stdout.
    command.1.spawn().ok().map(|child| (command.0, child))
}
