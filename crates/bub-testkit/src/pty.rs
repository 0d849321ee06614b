//! A program in a pseudo-terminal: what it shows is read, what a person would type is sent.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
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

/// Longer than anything on a busy computer takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The beginning of a command whose terminal is also the one that Ctrl-C comes from. Needs Linux.
pub const LEADER: [&str; 3] = ["setsid", "-c", "-w"];

/// A running program and its terminal.
pub struct Pty {
    child: Child,
    master: File,
    output: Receiver<Vec<u8>>,
    /// All that was shown.
    shown: String,
    /// How far it was looked at.
    seen: usize,
}

#[expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "a test stops at the first surprise"
)]
impl Pty {
    /// Starts a command, which begins with [`LEADER`], in a terminal of 24 lines and 100 columns.
    pub fn spawn(command: Command) -> Self {
        Self::spawn_sized(command, 24, 100)
    }

    /// The same with another size.
    pub fn spawn_sized(mut command: Command, rows: u16, columns: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let flags = i32::try_from(OFlags::NOCTTY.bits()).unwrap();
        let slave = OpenOptions::new().read(true).write(true).custom_flags(flags).open(name).unwrap();
        let end = || OwnedFd::from(slave.try_clone().unwrap());
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        // Or the end of the program would not be the end of its output.
        drop((command, slave));
        let master = File::from(master);
        let (sender, output) = channel();
        let mut reader = master.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { child, master, output, shown: String::new(), seen: 0 }
    }

    /// Types.
    pub fn send(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until this is shown, and gives what came since the last time, it included.
    pub fn expect(&mut self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.shown[self.seen..].find(text) {
                let end = self.seen + at + text.len();
                let part = self.shown[self.seen..end].to_owned();
                self.seen = end;
                return part;
            }
            let is_open = self.read(deadline);
            let open = if is_open { "" } else { " before the program ended" };
            let found = self.shown[self.seen..].contains(text);
            assert!(is_open || found, "{text:?} was not shown{open}:\n{}", self.shown);
        }
    }

    /// Waits for the end: exit code, and all that was ever shown.
    pub fn finish(mut self) -> (Option<i32>, String) {
        (self.end(), std::mem::take(&mut self.shown))
    }

    /// Waits for the end: exit code.
    pub fn end(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        while self.read(deadline) {}
        self.child.wait().unwrap().code()
    }

    /// Whether the terminal shows what is typed, as the program left it.
    pub fn echoes(&self) -> bool {
        tcgetattr(&self.master).unwrap().local_modes.contains(LocalModes::ECHO)
    }

    /// The process that was started.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Reads more; says whether there can be any.
    fn read(&mut self, deadline: Instant) -> bool {
        match self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(bytes) => {
                self.shown.push_str(&String::from_utf8_lossy(&bytes));
                true
            }
            Err(RecvTimeoutError::Disconnected) => false,
            Err(RecvTimeoutError::Timeout) => panic!("nothing happens:\n{}", self.shown),
        }
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        // Already over in a test that went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
