//! Prints the results of commands to stdout.

use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
};

use bub_kernel::{Error, ErrorKind, Result};

use bub_terminal::sanitize as text;

/// Prints untrusted text to stdout. Removes control sequences if stdout is a terminal.
pub fn print_untrusted(text: &str) -> Result<ExitCode> {
    if std::io::stdout().is_terminal() {
        print(&text::sanitize(text))
    } else {
        print(text)
    }
}

/// Converts untrusted text to one line without control sequences.
pub fn sanitize_line(text: &str) -> String {
    text::sanitize_line(text)
}

/// Removes control sequences from untrusted text and keeps its lines.
pub fn sanitize(text: &str) -> String {
    text::sanitize(text).into_owned()
}

/// Prints a result to stdout. A closed pipe (`bub … | head`) is not an error.
pub fn print(text: &str) -> Result<ExitCode> {
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err(Error::new(
            ErrorKind::Temporary,
            format!("cannot write to stdout: {error}"),
        )),
    }
}
