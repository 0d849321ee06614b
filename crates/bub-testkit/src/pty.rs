//! A program in a pseudo-terminal: tests read its output and send input.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    process::{Child, Command},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use rustix::{
    fs::OFlags,
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};

/// Timeout that is long enough for a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Start of a command whose terminal also sends Ctrl-C. Linux only.
pub const SESSION_LEADER: [&str; 3] = ["setsid", "-c", "-w"];

/// A running program and its terminal.
pub struct Pty {
    child: Child,
    master: File,
    output: Receiver<Vec<u8>>,
    /// Complete output.
    shown: String,
    /// Length of the output that was already checked.
    seen: usize,
    /// First bytes of an incomplete character.
    incomplete: Vec<u8>,
}

#[expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "a test stops at the first surprise"
)]
impl Pty {
    /// Starts a command, which begins with [`SESSION_LEADER`], in a terminal of 24 lines and 100
    /// columns.
    pub fn spawn(command: Command) -> Self {
        Self::spawn_sized(command, 24, 100)
    }

    /// Starts a command in a terminal of the given size.
    pub fn spawn_sized(command: Command, rows: u16, columns: u16) -> Self {
        Self::try_spawn(command, rows, columns).unwrap()
    }

    /// Starts a command in a terminal of the given size; returns an error if it cannot be started.
    pub fn try_spawn(mut command: Command, rows: u16, columns: u16) -> io::Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&master, size)?;
        let name = ptsname(&master, Vec::new())?
            .into_string()
            .map_err(io::Error::other)?;
        let flags = i32::try_from(OFlags::NOCTTY.bits()).map_err(io::Error::other)?;
        let slave = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(name)?;
        let end = || slave.try_clone().map(OwnedFd::from);
        let child = command
            .stdin(end()?)
            .stdout(end()?)
            .stderr(end()?)
            .spawn()?;
        // Otherwise the output would not end when the program ends.
        drop((command, slave));
        let master = File::from(master);
        let (sender, output) = channel();
        let mut reader = master.try_clone()?;
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            child,
            master,
            output,
            shown: String::new(),
            seen: 0,
            incomplete: Vec::new(),
        })
    }

    /// Sends input.
    pub fn send(&mut self, keys: &str) {
        self.try_send(keys).unwrap();
    }

    /// Sends input; returns an error if the program has ended.
    pub fn try_send(&mut self, keys: &str) -> io::Result<()> {
        self.master.write_all(keys.as_bytes())
    }

    /// Waits for a text and returns the output since the last call, including the text.
    pub fn expect(&mut self, text: &str) -> String {
        self.try_expect(text, TEST_TIMEOUT)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Waits for a text with a timeout; returns a description of the failure otherwise.
    pub fn try_expect(&mut self, text: &str, timeout: Duration) -> Result<String, String> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(at) = self.shown[self.seen..].find(text) {
                let end = self.seen + at + text.len();
                let part = self.shown[self.seen..end].to_owned();
                self.seen = end;
                return Ok(part);
            }
            if !self.read_output(deadline)? {
                let end = self
                    .child
                    .wait()
                    .map_or_else(|error| error.to_string(), |end| end.to_string());
                return Err(format!(
                    "{text:?} was not shown before the program ended ({end}):\n{}",
                    self.shown
                ));
            }
        }
    }

    /// Waits until the complete output meets a condition, or returns a description of the failure.
    pub fn try_wait_until(
        &mut self,
        timeout: Duration,
        mut is_met: impl FnMut(&str) -> bool,
    ) -> Result<(), String> {
        let deadline = Instant::now() + timeout;
        while !is_met(&self.shown) {
            if !self.read_output(deadline)? {
                return Err(format!("the program ended too early:\n{}", self.shown));
            }
        }
        Ok(())
    }

    /// Waits for the program to exit; returns the exit code and the complete output.
    pub fn finish(mut self) -> (Option<i32>, String) {
        (self.end(), std::mem::take(&mut self.shown))
    }

    /// Waits for the program to exit; returns the exit code.
    pub fn end(&mut self) -> Option<i32> {
        self.try_end(TEST_TIMEOUT)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Waits for the program to exit, with a timeout.
    pub fn try_end(&mut self, timeout: Duration) -> Result<Option<i32>, String> {
        let deadline = Instant::now() + timeout;
        while self.read_output(deadline)? {}
        self.child
            .wait()
            .map(|end| end.code())
            .map_err(|error| error.to_string())
    }

    /// Returns whether the terminal echoes input.
    pub fn is_echoing(&self) -> bool {
        tcgetattr(&self.master)
            .unwrap()
            .local_modes
            .contains(LocalModes::ECHO)
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Reads more output; returns whether more can follow.
    fn read_output(&mut self, deadline: Instant) -> Result<bool, String> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.output.recv_timeout(left) {
            // Endless output does not extend the timeout.
            Ok(_) if left.is_zero() => Err(format!(
                "output continues after the timeout:\n{}",
                self.shown
            )),
            Ok(bytes) => {
                self.append_output(&bytes);
                Ok(true)
            }
            Err(RecvTimeoutError::Disconnected) => Ok(false),
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("timed out; output so far:\n{}", self.shown))
            }
        }
    }

    /// Appends bytes to the output. A read may end inside a character.
    fn append_output(&mut self, bytes: &[u8]) {
        self.incomplete.extend_from_slice(bytes);
        let end = match std::str::from_utf8(&self.incomplete) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.incomplete.len(),
        };
        let complete: Vec<u8> = self.incomplete.drain(..end).collect();
        self.shown.push_str(&String::from_utf8_lossy(&complete));
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        // After a successful test the program has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_that_is_read_in_two_parts_is_shown() {
        let mut command = Command::new("sh");
        command.args(["-c", r"printf '\342\226'; sleep 0.2; printf '\210 done'"]);
        let (code, shown) = Pty::spawn(command).finish();
        assert_eq!((code, shown.as_str()), (Some(0), "█ done"));
    }
}
