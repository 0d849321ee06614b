//! The terminal device: raw mode, its size, what is typed, and its restoration whatever happens.

use std::{
    io::{self, Read as _, Write as _},
    sync::{Mutex, PoisonError},
};

use rustix::{
    stdio::{stdin, stdout},
    termios::{OptionalActions, OutputModes, Termios, tcgetattr, tcgetwinsize, tcsetattr},
};
use tokio::sync::mpsc;

use crate::screen::Size;

/// How the terminal was before raw mode. In one place, because whoever ends the process has to put it back.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Bracketed paste off, the cursor shown, no style, no update left open.
const RESTORE: &[u8] = b"\x1b[?2026l\x1b[?2004l\x1b[?25h\x1b[0m";

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
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
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

/// Puts the terminal back as it was before raw mode. Does nothing when it is so already.
pub fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        let mut out = io::stdout();
        let _ = out.write_all(RESTORE).and_then(|()| out.flush());
        let _ = tcsetattr(stdin(), OptionalActions::Now, &before);
    }
}

/// Whether the terminal is in raw mode: then nobody else may ask anything there.
pub fn is_raw() -> bool {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// How large the terminal is; what it does not say is taken as usual.
pub fn size() -> Size {
    let (columns, rows) = tcgetwinsize(stdout()).map_or((0, 0), |size| (size.ws_col, size.ws_row));
    let or = |count: u16, usual: usize| if count == 0 { usual } else { usize::from(count) };
    Size { columns: or(columns, 80), rows: or(rows, 24) }
}

/// What is typed. The channel ends with the terminal.
pub fn typed() -> io::Result<mpsc::Receiver<Vec<u8>>> {
    let (sender, typed) = mpsc::channel(64);
    std::thread::Builder::new().name("typed".to_owned()).spawn(move || {
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
