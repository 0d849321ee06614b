//! Reads the lines of stdin.

use std::{
    borrow::Cow,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
};

use bub_kernel::Error;
use tokio::sync::mpsc;

/// Maximum length of an input line.
const MAX_LINE_BYTES: u64 = 16 * 1024 * 1024;

/// Starts a thread that reads the lines of stdin, and returns the queue of its results. Invalid UTF-8 is replaced, with
/// a warning.
///
/// At a terminal, `None` is the end of input. Reading can continue after it, because Ctrl-D is just a key.
pub(super) fn spawn_line_reader(is_terminal: bool) -> mpsc::Receiver<io::Result<Option<String>>> {
    let (sender, lines) = mpsc::channel(1);
    let read_lines = move || {
        let mut input = BufReader::new(io::stdin());
        loop {
            let mut line = Vec::new();
            let mut limited = input.by_ref().take(MAX_LINE_BYTES + 1);
            let line = match limited.read_until(b'\n', &mut line) {
                Ok(0) if is_terminal => Ok(None),
                Ok(0) => return,
                Ok(_) if line.len() as u64 > MAX_LINE_BYTES => Err(io::Error::other(format!(
                    "a line has more than {MAX_LINE_BYTES} bytes; split it"
                ))),
                Ok(_) => Ok(Some(decode_line(&line))),
                Err(error) => Err(error),
            };
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    };
    // Ignore errors: without the thread, the queue closes and the chat ends.
    let thread = std::thread::Builder::new().name("typed".to_owned());
    let _ = thread.spawn(read_lines);
    lines
}

fn decode_line(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    if matches!(text, Cow::Owned(_)) {
        // Ignore errors: if stderr cannot be written, there is nowhere to report them.
        let warning = b"input line is not valid UTF-8; invalid bytes were replaced\n";
        let _ = io::stderr().write_all(warning);
    }
    text.trim_end_matches(['\n', '\r']).to_owned()
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(super) fn input_error(error: io::Error) -> Error {
    Error::invalid_input(format!(
        "cannot read stdin: {error}; check the input and start the chat again"
    ))
}
