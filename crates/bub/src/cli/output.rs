//! Writing results to standard output.

use std::{io::Write, process::ExitCode};

use bub_kernel::{Error, ErrorKind, Result};

/// Prints a result. A reader that has gone away (`bub … | head`) is no failure.
pub(crate) fn print(text: &str) -> Result<ExitCode> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => {
            Err(Error::new(ErrorKind::Temporary, format!("cannot write to standard output: {error}")))
        }
    }
}
