//! Prints the picture of a session: `picture PATH-TO-BUB`. `cargo xtask picture` writes it to its
//! file. Linux only.

use std::{io::Write, path::Path, process::ExitCode};

fn main() -> ExitCode {
    let Some(bub) = std::env::args_os().nth(1) else {
        let _ = writeln!(std::io::stderr(), "usage: picture PATH-TO-BUB");
        return ExitCode::from(2);
    };
    let outcome = bub_testkit::picture::render_session(Path::new(&bub))
        .and_then(|image| std::io::stdout().write_all(image.as_bytes()));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}
