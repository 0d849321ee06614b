//! Prints the results of commands to stdout, and notices to stderr.

use std::{
    fs::File,
    io::{self, IsTerminal, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    process::ExitCode,
};

use bub_kernel::{Error, ErrorKind, Result};

pub use bub_terminal::sanitize::{sanitize, sanitize_line};

pub use crate::prompt::print_stderr;

/// Prints untrusted text to stdout. Removes control sequences if stdout is a terminal.
pub fn print_untrusted(text: &str) -> Result<ExitCode> {
    if std::io::stdout().is_terminal() {
        print(&sanitize(text))
    } else {
        print(text)
    }
}

/// Prints a result to stdout. A closed pipe (`bub … | head`) is not an error.
pub fn print(text: &str) -> Result<ExitCode> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    match written.and_then(|()| stdout.flush()) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err(Error::new(
            ErrorKind::Temporary,
            format!("cannot write to stdout: {error}"),
        )),
    }
}

/// Creates a file for a result. Only the user can read it, because a result can have what is on a tape.
///
/// # Errors
///
/// Fails with a text for the user if the file exists.
pub fn create_result_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            let path = path.display();
            let text = format!("file `{path}` already exists; choose another file");
            io::Error::new(error.kind(), text)
        }
        _ => error,
    })
}
