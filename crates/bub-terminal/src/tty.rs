//! The terminal device: raw mode, size, input, and restoration of its modes.

use std::{
    io::{self, Read as _, Write as _},
    os::fd::AsFd,
};

use parking_lot::{Mutex, const_mutex};
use rustix::{
    io::Errno,
    stdio::{stdin, stdout},
    termios::{
        LocalModes, OptionalActions, OutputModes, Termios, tcgetattr, tcgetwinsize, tcsetattr,
    },
};
use tokio::sync::mpsc;

use crate::screen::TerminalSize;

/// The terminal modes before bub changed them, or `None` if they are unchanged. Global, because every way to end the
/// process must restore them.
static SAVED_TERMINAL: Mutex<Option<SavedTerminal>> = const_mutex(None);

struct SavedTerminal {
    modes: Termios,
    /// Bytes to write before the modes are restored.
    undo: &'static [u8],
}

/// Escape sequences that end a synchronized update, turn bracketed paste off, show the cursor, and reset the style.
const RESTORE_SEQUENCE: &[u8] = b"\x1b[?2026l\x1b[?2004l\x1b[?25h\x1b[0m";

/// Returns whether a terminal was closed. Reading it then returns the end of the input, as after Ctrl-D.
pub fn is_hung_up(terminal: impl AsFd) -> bool {
    tcgetattr(terminal).is_err_and(|error| error == Errno::IO)
}

/// Keeps the terminal in another mode until dropped.
#[derive(Debug)]
pub struct ModeGuard(());

impl ModeGuard {
    /// Enters raw mode: each key arrives immediately and is not echoed. The terminal encloses pasted text in
    /// escape sequences.
    ///
    /// # Errors
    ///
    /// Fails if stdin is not a terminal or stdout cannot be written.
    pub fn raw_mode() -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        // Keep output processing, so that a line feed from another writer still returns to the first column.
        raw.output_modes |= OutputModes::OPOST;
        *SAVED_TERMINAL.lock() = Some(SavedTerminal {
            modes: before,
            undo: RESTORE_SEQUENCE,
        });
        tcsetattr(stdin(), OptionalActions::Now, &raw)?;
        let mut out = io::stdout();
        out.write_all(b"\x1b[?2004h")?;
        out.flush()?;
        Ok(Self(()))
    }

    /// Turns the echo off and discards input that was typed before.
    ///
    /// # Errors
    ///
    /// Fails if stdin is not a terminal.
    pub fn echo_off() -> io::Result<Self> {
        Self::without_echo(OptionalActions::Flush)
    }

    /// Turns the echo off after the question was printed: what the user has typed since then is kept.
    ///
    /// # Errors
    ///
    /// Fails if stdin is not a terminal.
    pub fn echo_off_after_question() -> io::Result<Self> {
        Self::without_echo(OptionalActions::Now)
    }

    fn without_echo(action: OptionalActions) -> io::Result<Self> {
        let modes = tcgetattr(stdin())?;
        let mut quiet = modes.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        *SAVED_TERMINAL.lock() = Some(SavedTerminal { modes, undo: b"" });
        tcsetattr(stdin(), action, &quiet)?;
        Ok(Self(()))
    }
}

impl Drop for ModeGuard {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal modes. Does nothing if bub has not changed them.
pub fn restore() {
    let before = SAVED_TERMINAL.lock().take();
    if let Some(SavedTerminal { modes, undo }) = before {
        let mut out = io::stdout();
        let _ = out.write_all(undo).and_then(|()| out.flush());
        let _ = tcsetattr(stdin(), OptionalActions::Now, &modes);
    }
}

/// Returns whether the terminal is in raw mode or its echo is off. Other code must then not ask the user for input.
pub fn is_in_use() -> bool {
    SAVED_TERMINAL.lock().is_some()
}

/// Returns the size of the terminal. Unknown dimensions default to 80 columns and 24 rows.
pub fn size() -> TerminalSize {
    let (columns, rows) = tcgetwinsize(stdout()).map_or((0, 0), |size| (size.ws_col, size.ws_row));
    let or_default =
        |count: u16, default: u16| usize::from(if count == 0 { default } else { count });
    TerminalSize {
        columns: or_default(columns, 80),
        rows: or_default(rows, 24),
    }
}

/// Starts a thread that reads typed bytes into a queue, and returns the receiver of the queue. The queue closes when
/// stdin ends or cannot be read.
///
/// # Errors
///
/// Fails if the thread cannot be started.
pub fn spawn_input_reader() -> io::Result<mpsc::Receiver<Vec<u8>>> {
    let (sender, input) = mpsc::channel(64);
    let read_bytes = move || {
        let mut bytes = [0; 4096];
        loop {
            let read = match io::stdin().read(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Ok(length @ 1..) => bytes.get(..length).unwrap_or_default(),
                Ok(0) | Err(_) => break,
            };
            if sender.blocking_send(read.to_vec()).is_err() {
                break;
            }
        }
    };
    let thread = std::thread::Builder::new().name("typed".to_owned());
    thread.spawn(read_bytes)?;
    Ok(input)
}
