//! The terminal device: raw mode, its size, what is typed, and its restoration whatever happens.

use std::{
    io::{self, Read as _, Write as _},
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::{
    stdio::{stdin, stdout},
    termios::{
        LocalModes, OptionalActions, OutputModes, Termios, tcgetattr, tcgetwinsize, tcsetattr,
    },
};
use tokio::sync::mpsc;

use crate::screen::TerminalSize;

/// How the terminal was before it was changed. In one place, because whoever ends the process has to put it back.
static SAVED_TERMINAL: Mutex<Option<SavedTerminal>> = Mutex::new(None);

struct SavedTerminal {
    modes: Termios,
    /// What else undoes the change.
    undo: &'static [u8],
}

/// Bracketed paste off, the cursor shown, no style, no update left open.
const RESTORE_SEQUENCE: &[u8] = b"\x1b[?2026l\x1b[?2004l\x1b[?25h\x1b[0m";

/// Raw mode, until this is dropped.
#[derive(Debug)]
pub struct RawMode(());

impl RawMode {
    /// Every key arrives at once and is not echoed; pasted text is marked as such.
    pub fn enter() -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        // Line ends that somebody else writes still go to the first column.
        raw.output_modes |= OutputModes::OPOST;
        *self::saved_terminal() = Some(SavedTerminal {
            modes: before,
            undo: RESTORE_SEQUENCE,
        });
        tcsetattr(stdin(), OptionalActions::Now, &raw)?;
        let mut out = io::stdout();
        out.write_all(b"\x1b[?2004h")?;
        out.flush()?;
        Ok(Self(()))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// A terminal that does not show what is typed, until this is dropped.
#[derive(Debug)]
pub struct EchoOff(());

impl EchoOff {
    /// Forgets what was typed before.
    pub fn enter() -> io::Result<Self> {
        let modes = tcgetattr(stdin())?;
        let mut quiet = modes.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        *saved_terminal() = Some(SavedTerminal { modes, undo: b"" });
        tcsetattr(stdin(), OptionalActions::Flush, &quiet)?;
        Ok(Self(()))
    }
}

impl Drop for EchoOff {
    fn drop(&mut self) {
        restore();
    }
}

fn saved_terminal() -> MutexGuard<'static, Option<SavedTerminal>> {
    SAVED_TERMINAL
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Puts the terminal back as it was before it was changed. Does nothing when it is so already.
pub fn restore() {
    let before = saved_terminal().take();
    if let Some(SavedTerminal { modes, undo }) = before {
        let mut out = io::stdout();
        let _ = out.write_all(undo).and_then(|()| out.flush());
        let _ = tcsetattr(stdin(), OptionalActions::Now, &modes);
    }
}

/// Whether somebody has the terminal, in raw mode or for a secret: then nobody else may ask anything there.
pub fn is_taken() -> bool {
    saved_terminal().is_some()
}

/// How large the terminal is; what it does not say is taken as usual.
pub fn size() -> TerminalSize {
    let (columns, rows) = tcgetwinsize(stdout()).map_or((0, 0), |size| (size.ws_col, size.ws_row));
    let or = |count: u16, usual: usize| {
        if count == 0 {
            usual
        } else {
            usize::from(count)
        }
    };
    TerminalSize {
        columns: or(columns, 80),
        rows: or(rows, 24),
    }
}

/// What is typed. The channel ends with the terminal.
pub fn typed() -> io::Result<mpsc::Receiver<Vec<u8>>> {
    let (sender, typed) = mpsc::channel(64);
    std::thread::Builder::new()
        .name("typed".to_owned())
        .spawn(move || {
            let mut bytes = [0; 4096];
            loop {
                match io::stdin().read(&mut bytes) {
                    Ok(0) => break,
                    Ok(length) => {
                        let read = bytes.get(..length).unwrap_or_default().to_vec();
                        if sender.blocking_send(read).is_err() {
                            break;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
        })?;
    Ok(typed)
}
