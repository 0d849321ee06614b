//! Writes results to stdout, a pager or a file, with secrets redacted.

use std::{
    ffi::OsString,
    io::{self, BufWriter, IsTerminal, Write},
    path::{Path, PathBuf},
    pin::pin,
    process::{Child, Command, Stdio},
};

use bub::output::create_result_file;
use bub_settings::{RedactingWriter, Settings};
use bub_tape::{Entry, Result, TapeError};
use futures_util::{Stream, TryStreamExt as _};
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

    /// Creates a writer to the user's pager, or to stdout if the pager does not start or stdout is not a terminal.
    pub(super) fn for_pager(settings: &Settings) -> Self {
        let Some((name, mut child)) = start_pager(settings) else {
            return Self::for_stdout(settings);
        };
        let Some(stdin) = child.stdin.take() else {
            return Self::for_stdout(settings);
        };
        let interrupt = signal(SignalKind::interrupt()).ok();
        let target = OutputTarget::Pager(name, child, interrupt);
        Self::new(settings, Box::new(stdin), target)
    }

    /// Creates a writer to a new file that only the user can read, like a tape. Fails if the file exists.
    pub(super) fn create_file(settings: &Settings, path: &Path) -> Result<Self> {
        let file = create_result_file(path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => TapeError::InvalidInput(error.to_string()),
            _ => TapeError::from_io("write", path, error),
        })?;
        let target = OutputTarget::File(path.to_owned());
        Ok(Self::new(settings, Box::new(file), target))
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

    /// Writes entries until the reader closes the pipe, calls [`finish`](Self::finish), and returns the number of entries.
    pub(super) async fn write_entries(
        mut self,
        entries: impl Stream<Item = Result<Entry>>,
        format: impl Fn(&Entry) -> String,
    ) -> Result<usize> {
        let mut entries = pin!(entries);
        let written = async {
            let mut count = 0;
            while let Some(entry) = entries.try_next().await? {
                count += 1;
                if !self.write(&format(&entry))? {
                    break;
                }
            }
            Ok(count)
        }
        .await;
        // Wait for the pager also after an error, or it would outlive the program.
        self.finish()?;
        written
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
    let pager = environment.get("PAGER");
    if pager.is_some_and(|pager| pager.is_empty() || pager == "cat") {
        return None;
    }
    let mut command = Command::new(pager.map_or("less", |_| "sh"));
    if let Some(pager) = pager {
        command.arg("-c").arg(pager);
    }
    command.env_clear().envs(settings.child_environment());
    if environment.get("LESS").is_none() {
        command.env("LESS", DEFAULT_LESS);
    }
    // Without a pager, the output goes to stdout.
    let child = command.stdin(Stdio::piped()).spawn().ok()?;
    Some((pager.unwrap_or("less".as_ref()).to_owned(), child))
}
