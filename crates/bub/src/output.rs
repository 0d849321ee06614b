//! Prints the results of commands to stdout, and notices to stderr.

use std::{
    io::{IsTerminal, Write},
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
