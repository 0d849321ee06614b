//! A new home and workspace for each test, and the programs that run in them.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::missing_panics_doc,
    reason = "a test stops at the first surprise"
)]

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// How long [`wait_until`] waits: longer than any step on a busy machine, so that only a hang fails the test.
const WAIT_TIMEOUT: Duration = Duration::from_mins(1);

/// A separate home and workspace. Removed after the test.
#[derive(Debug)]
pub struct Sandbox {
    dir: TempDir,
}

impl Sandbox {
    /// Creates a sandbox without a home directory.
    pub fn new() -> io::Result<Self> {
        let dir = TempDir::new()?;
        fs::create_dir(dir.path().join("workspace"))?;
        Ok(Self { dir })
    }

    /// Returns `BUB_HOME`.
    pub fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// Returns the workspace, which is the working directory of the programs.
    pub fn workspace(&self) -> PathBuf {
        self.dir.path().join("workspace")
    }

    /// Writes a file in the sandbox and creates its directories.
    pub fn write(&self, path: &str, content: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Returns the text of the only tape.
    pub fn only_tape(&self) -> String {
        let files = fs::read_dir(self.home().join("tapes")).unwrap();
        let paths = files.map(|file| file.unwrap().path());
        let tapes: Vec<PathBuf> = paths
            .filter(|path| path.extension() == Some(OsStr::new("jsonl")))
            .collect();
        let [tape] = tapes.as_slice() else {
            panic!("{tapes:?}")
        };
        fs::read_to_string(tape).unwrap()
    }

    /// Returns a command in the workspace whose environment contains only the home.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.workspace())
            .env_clear()
            .env("BUB_HOME", self.home())
            .env("HOME", self.dir.path())
            // Local model servers on this machine must not affect the tests.
            .env("BUB_LOCAL_MODELS", "false")
            .env("PATH", search_path())
            .stdin(Stdio::null());
        command
    }

    /// Runs a program to its end.
    pub fn run<S: AsRef<OsStr>>(&self, program: &Path, args: impl IntoIterator<Item = S>) -> Run {
        Run::from_output(self.command(program).args(args).output().unwrap())
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "programs of the tests are found like those of the test runner"
)]
fn search_path() -> std::ffi::OsString {
    std::env::var_os("PATH").unwrap_or_default()
}

/// Exit code and output of a program.
#[derive(Debug)]
pub struct Run {
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    /// The complete stdout.
    pub stdout: String,
    /// The complete stderr.
    pub stderr: String,
}

impl Run {
    /// Converts the output of a program, which must be text.
    pub fn from_output(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Returns stdout. Fails if the program failed.
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }
}

/// Returns whether the test runner ignores a signal, as `nohup` and background shells do. Programs that the tests start
/// inherit that.
pub fn is_ignored(signal: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .unwrap_or("0");
    let is_so =
        u64::from_str_radix(ignored.trim(), 16).is_ok_and(|mask| mask & (1 << (signal - 1)) != 0);
    if is_so {
        println!("signal {signal} is ignored here: it is not tried");
    }
    is_so
}

/// Signals that end a program cleanly: names and exit codes.
pub fn ending_signals() -> Vec<(&'static str, i32)> {
    let hangup = (!is_ignored(1)).then_some(("HUP", 129));
    [("TERM", 143), ("QUIT", 131)]
        .into_iter()
        .chain(hangup)
        .collect()
}

/// Sends a signal to a child process of the test.
pub fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill")
        .args(["-s", name, &child.id().to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
}

/// Waits until a condition is true. Fails with `what` after a minute.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
