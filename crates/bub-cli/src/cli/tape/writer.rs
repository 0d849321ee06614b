//! Where results go: standard output, a pager in front of it, or a file. Secrets are replaced on the way.

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

/// How `less` behaves unless `LESS` says otherwise: not at all for one screen, colours shown, the text left on the screen.
const DEFAULT_LESS: &str = "FRX";

/// An open destination. Everything in it is whole lines; call [`finish`](Self::finish) after the last one.
pub(super) struct ResultWriter {
    writer: RedactingWriter<Box<dyn Write + Send>>,
    place: OutputTarget,
}

enum OutputTarget {
    Stdout,
    /// While it runs, Ctrl-C is for the pager: dying before it would leave it fighting the shell for the terminal.
    Pager(OsString, Child, Option<Signal>),
    File(PathBuf),
}

impl ResultWriter {
    /// Standard output, as it is.
    pub(super) fn plain(settings: &Settings) -> Self {
        Self::new(settings, Box::new(io::stdout()), OutputTarget::Stdout)
    }

    /// Standard output, through the user's pager when it is a terminal.
    pub(super) fn paged(settings: &Settings) -> Self {
        let Some((name, mut child)) = start_pager(settings) else {
            return Self::plain(settings);
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
            None => Self::plain(settings),
        }
    }

    /// A new file, as private as the tape it comes from; one that exists is left alone.
    pub(super) fn file(settings: &Settings, path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path);
        let file: File = file.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => TapeError::InvalidInput(format!(
                "`{}` exists and is not overwritten; name another file",
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

    fn new(settings: &Settings, writer: Box<dyn Write + Send>, place: OutputTarget) -> Self {
        let buffered: Box<dyn Write + Send> = Box::new(BufWriter::with_capacity(64 * 1024, writer));
        Self {
            writer: settings.redactor().writer(buffered),
            place,
        }
    }

    /// Writes; `false` when nobody reads any more, as in `bub … | head`.
    pub(super) fn write(&mut self, text: &str) -> Result<bool> {
        let outcome = self.writer.write_all(text.as_bytes());
        self.checked(outcome)
    }

    /// Passes everything on and, with a pager, waits until the user has read it.
    pub(super) fn finish(mut self) -> Result<()> {
        let outcome = self.writer.flush();
        self.checked(outcome)?;
        drop(self.writer);
        if let OutputTarget::Pager(name, mut child, interrupt) = self.place {
            let status = child.wait();
            drop(interrupt);
            // What a shell answers when there is no such command.
            if status.is_ok_and(|status| status.code() == Some(127)) {
                let name = name.to_string_lossy().into_owned();
                let source = io::Error::new(
                    io::ErrorKind::NotFound,
                    "no such command; set PAGER to another, or to `cat`",
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

    fn checked(&self, outcome: io::Result<()>) -> Result<bool> {
        match outcome {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => {
                let path = match &self.place {
                    OutputTarget::File(path) => path,
                    OutputTarget::Stdout | OutputTarget::Pager(..) => Path::new("standard output"),
                };
                Err(TapeError::from_io("write", path, error))
            }
        }
    }
}

/// The user's pager, `less` unless `PAGER` names another; none when output is not read on a terminal.
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
    // No pager is no reason to show nothing.
    command.1.spawn().ok().map(|child| (command.0, child))
}
