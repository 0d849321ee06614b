//! Writing results to standard output.

use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
};

use bub_kernel::{Error, ErrorKind, Result};

use bub_terminal::sanitize as text;

/// Prints text that somebody else wrote: on a terminal it cannot move the cursor or worse.
pub fn print_text(text: &str) -> Result<ExitCode> {
    if std::io::stdout().is_terminal() {
        print(&text::sanitize(text))
    } else {
        print(text)
    }
}

/// Any text as one line that is safe to show.
pub fn one_line(text: &str) -> String {
    text::line(text)
}

/// Any text that is safe to show, with its lines.
pub fn harmless(text: &str) -> String {
    text::sanitize(text).into_owned()
}

/// Prints a result. A reader that has gone away (`bub … | head`) is no failure.
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
            format!("cannot write to standard output: {error}"),
        )),
    }
}
