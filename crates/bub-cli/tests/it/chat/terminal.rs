//! A pseudo-terminal that runs a program, and an emulator that shows its screen.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Child,
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

use bub_testkit::model::ModelServer;
use rustix::{
    fs::{Mode, OFlags},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};

use crate::sandbox::{Sandbox, bub, example, signal, wait_until};

/// Timeout of a wait. Nothing takes longer, even on a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_mins(1);

pub(crate) struct Terminal {
    child: Child,
    master: File,
    seen: Arc<(Mutex<ScreenState>, Condvar)>,
}

struct ScreenState {
    parser: vt100::Parser,
    bytes: Vec<u8>,
    /// Whether to stop reading after the next output.
    should_close: bool,
    is_closed: bool,
}

/// Options of a chat to start.
pub(crate) struct TerminalOptions<'a> {
    sandbox: &'a Sandbox,
    program: PathBuf,
    args: Vec<String>,
    variables: Vec<(String, String)>,
    size: (u16, u16),
}

impl<'a> TerminalOptions<'a> {
    pub(crate) fn new(sandbox: &'a Sandbox) -> Self {
        // A terminal like the emulator: it does not rewrap its lines.
        // No server listens there: without a model, the chat would offer to set one up.
        let variables = [
            ("TERM", "vt220"),
            ("BUB_MODEL", "openai:small"),
            ("BUB_API_BASE", "http://127.0.0.1:9/v1"),
            ("BUB_API_KEY", "key-of-the-tests"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self {
            sandbox,
            program: bub(),
            args: vec!["chat".to_owned()],
            variables: variables.to_vec(),
            size: (80, 24),
        }
    }

    pub(crate) fn program(mut self, path: &Path) -> Self {
        path.clone_into(&mut self.program);
        self
    }

    pub(crate) fn model(mut self, server: &ModelServer) -> Self {
        let base = format!("{}/v1", server.url());
        for (name, value) in [
            ("BUB_MODEL", "openai:small"),
            ("BUB_API_BASE", base.as_str()),
            ("BUB_API_KEY", "key-of-the-tests"),
        ] {
            self = self.set(name, value);
        }
        self
    }

    pub(crate) fn set(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// Removes the model and its key from the environment.
    pub(crate) fn without_model(mut self) -> Self {
        self.variables.retain(|(name, _)| !name.starts_with("BUB_"));
        self
    }

    /// Starts this command instead of a chat.
    pub(crate) fn command(mut self, args: &[&str]) -> Self {
        self.args.clear();
        self.args(args)
    }

    pub(crate) fn size(mut self, columns: u16, rows: u16) -> Self {
        self.size = (columns, rows);
        self
    }

    pub(crate) fn start(self) -> Terminal {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let open = || -> OwnedFd {
            rustix::fs::open(
                &*name,
                OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .unwrap()
        };
        let (columns, rows) = self.size;
        set_size(&master, columns, rows);
        let mut command = self.sandbox.command(&example("in_terminal"));
        let child = command
            .arg(&self.program)
            .args(&self.args)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(open())
            .stdout(open())
            .stderr(open())
            .spawn()
            .unwrap();
        drop(command);
        let master = File::from(master);
        let seen = ScreenState {
            parser: vt100::Parser::new(rows, columns, 20_000),
            bytes: Vec::new(),
            should_close: false,
            is_closed: false,
        };
        let terminal = Terminal {
            child,
            master,
            seen: Arc::new((Mutex::new(seen), Condvar::new())),
        };
        terminal.read();
        terminal
    }
}

fn set_size(master: &impl std::os::fd::AsFd, columns: u16, rows: u16) {
    tcsetwinsize(
        master,
        Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        },
    )
    .unwrap();
}

impl Terminal {
    fn read(&self) {
        let mut master = self.master.try_clone().unwrap();
        let shared = Arc::clone(&self.seen);
        std::thread::spawn(move || {
            let mut bytes = vec![0; 65536];
            loop {
                // On Linux, the end is an error as soon as no process has the terminal open.
                let length = master.read(&mut bytes).unwrap_or(0);
                let mut seen = shared.0.lock().unwrap();
                seen.is_closed = length == 0 || seen.should_close;
                seen.parser.process(&bytes[..length]);
                seen.bytes.extend_from_slice(&bytes[..length]);
                if seen.is_closed {
                    drop(master);
                    shared.1.notify_all();
                    return;
                }
                shared.1.notify_all();
            }
        });
    }

    /// Types text; `\r` is Enter.
    pub(crate) fn send(&self, keys: impl AsRef<[u8]>) -> &Self {
        (&self.master).write_all(keys.as_ref()).unwrap();
        self
    }

    /// Waits until the screen satisfies the condition, and returns it.
    #[track_caller]
    pub(crate) fn wait_until(&self, condition: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        let mut seen = self.seen.0.lock().unwrap();
        loop {
            let screen = visible_text(&seen.parser);
            if !is_updating(&seen.bytes) && condition(&screen) {
                return screen;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero() && !seen.is_closed,
                "the screen is not as it should be:\n{screen}"
            );
            seen = self.seen.1.wait_timeout(seen, left).unwrap().0;
        }
    }

    /// Waits until a text is on the screen.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) -> String {
        self.wait_until(|screen| screen.contains(text))
    }

    /// Waits until the prompt is empty and no turn runs.
    #[track_caller]
    pub(crate) fn wait_idle(&self) -> String {
        self.wait_until(|screen| {
            let lines: Vec<&str> = screen.lines().collect();
            let at = lines.iter().rposition(|line| line.ends_with(" >"));
            at.is_some_and(|at| {
                !lines
                    .get(at.saturating_sub(1))
                    .is_some_and(|line| line.contains("Ctrl-C: cancel"))
            }) && !screen.contains("… waiting")
        })
    }

    /// Returns the scrollback and the screen as lines.
    pub(crate) fn scrollback(&self) -> String {
        let mut seen = self.seen.0.lock().unwrap();
        let mut text = String::new();
        let rows = usize::from(seen.parser.screen().size().0);
        seen.parser.screen_mut().set_scrollback(usize::MAX);
        let mut above = seen.parser.screen().scrollback();
        while above > 0 {
            let take = above.min(rows);
            let page = visible_text(&seen.parser);
            text.extend(page.lines().take(take).flat_map(|line| [line, "\n"]));
            above -= take;
            seen.parser.screen_mut().set_scrollback(above);
        }
        text + &visible_text(&seen.parser)
    }

    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        self.seen
            .0
            .lock()
            .unwrap()
            .parser
            .screen_mut()
            .set_size(rows, columns);
        set_size(&self.master, columns, rows);
    }

    /// Returns all bytes of the output so far.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.seen.0.lock().unwrap().bytes.clone()
    }

    /// Limits the file size of the program from now on.
    pub(crate) fn limit_files(&self, bytes: Option<u64>) {
        use rustix::process::{Pid, Resource, Rlimit, prlimit};
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        prlimit(
            pid,
            Resource::Fsize,
            Rlimit {
                current: bytes,
                maximum: None,
            },
        )
        .unwrap();
    }

    /// Closes the window, and waits for the end of the program. Returns its exit code.
    pub(crate) fn close(mut self) -> Option<i32> {
        let mut seen = self.seen.0.lock().unwrap();
        seen.should_close = true;
        // The reader has the terminal open until the next output, such as the echo of a key.
        (&self.master).write_all(b"x").unwrap();
        while !seen.is_closed {
            seen = self.seen.1.wait_timeout(seen, WAIT_TIMEOUT).unwrap().0;
        }
        drop(seen);
        self.master = File::open("/dev/null").unwrap();
        self.child.wait().unwrap().code()
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(&self.child, name);
    }

    /// Returns whether the terminal shows what the user types.
    pub(crate) fn has_echo(&self) -> bool {
        let modes = tcgetattr(&self.master).unwrap().local_modes;
        modes.contains(LocalModes::ECHO)
    }

    /// Returns whether the terminal echoes keys and edits lines, as before the chat.
    pub(crate) fn is_restored(&self) -> bool {
        let modes = tcgetattr(&self.master).unwrap().local_modes;
        let bytes = self.bytes();
        let last = |one: &[u8]| bytes.windows(one.len()).rposition(|window| window == one);
        modes.contains(LocalModes::ICANON | LocalModes::ECHO)
            && last(b"\x1b[?2004l") > last(b"\x1b[?2004h")
            && last(b"\x1b[?25h") > last(b"\x1b[?25l")
    }

    /// Waits for the end of the program. Returns the exit code and the screen.
    #[track_caller]
    pub(crate) fn wait_end(&mut self) -> (Option<i32>, String) {
        let mut status = None;
        wait_until("the program ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let code = status.and_then(|status| status.code());
        let mut seen = self.seen.0.lock().unwrap();
        while !seen.is_closed {
            let (next, waited) = self
                .seen
                .1
                .wait_timeout(seen, Duration::from_secs(2))
                .unwrap();
            seen = next;
            if waited.timed_out() {
                break;
            }
        }
        (code, visible_text(&seen.parser))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns whether a synchronized update has started but not ended.
fn is_updating(bytes: &[u8]) -> bool {
    let last = |mark: &[u8]| bytes.windows(mark.len()).rposition(|window| window == mark);
    last(b"\x1b[?2026h") > last(b"\x1b[?2026l")
}

/// Returns the screen without empty rows at the end.
fn visible_text(parser: &vt100::Parser) -> String {
    let screen = parser.screen();
    let (_, columns) = screen.size();
    let rows = screen.rows(0, columns).map(|row| row.trim_end().to_owned());
    let text = rows.collect::<Vec<_>>().join("\n");
    text.trim_end().to_owned()
}
