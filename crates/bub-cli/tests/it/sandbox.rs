//! A new home and workspace for each test, and the programs that run in them.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use tempfile::TempDir;

/// A separate home and workspace. Removed after the test.
pub(crate) struct Sandbox {
    dir: TempDir,
}

/// Returns whether the test runner ignores a signal, as `nohup` and background shells do. Programs that the tests start
/// inherit that.
pub(crate) fn is_ignored(signal: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
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
pub(crate) fn ending_signals() -> Vec<(&'static str, i32)> {
    let hangup = (!is_ignored(1)).then_some(("HUP", 129));
    [("TERM", 143), ("QUIT", 131)]
        .into_iter()
        .chain(hangup)
        .collect()
}

/// Exit code and output of a program.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        std::fs::create_dir(dir.path().join("workspace")).unwrap();
        Self { dir }
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.dir.path().join("workspace")
    }

    /// Writes a file in the sandbox and creates its directories.
    pub(crate) fn write(&self, path: &str, content: &str) {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Returns the text of the only tape.
    pub(crate) fn only_tape(&self) -> String {
        let files = std::fs::read_dir(self.home().join("tapes"))
            .unwrap()
            .map(|file| file.unwrap().path());
        let tapes: Vec<_> = files
            .filter(|path| {
                path.extension()
                    .is_some_and(|extension| extension == "jsonl")
            })
            .collect();
        let [tape] = tapes.as_slice() else {
            panic!("{tapes:?}")
        };
        std::fs::read_to_string(tape).unwrap()
    }

    /// Returns a command in the workspace whose environment contains only the home.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.workspace())
            .env_clear()
            .env("BUB_HOME", self.home())
            .env("HOME", self.dir.path())
            // Local model servers on this machine must not affect the tests.
            .env("BUB_LOCAL_MODELS", "false")
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn bub<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Run {
        Run::from_output(self.command(&bub()).args(args).output().unwrap())
    }

    pub(crate) fn example<S: AsRef<OsStr>>(
        &self,
        name: &str,
        args: impl IntoIterator<Item = S>,
    ) -> Run {
        Run::from_output(self.command(&example(name)).args(args).output().unwrap())
    }
}

impl Run {
    pub(crate) fn from_output(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Returns stdout. Fails if the program failed.
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }
}

pub(crate) fn bub() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_bub"))
}

/// Returns the path of an example. cargo builds all examples before it runs integration tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let path = bub().parent().unwrap().join("examples").join(name);
    assert!(
        path.exists(),
        "{} is not built; run the tests with `cargo test`",
        path.display()
    );
    path
}

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Sends a signal to a child process of the test.
pub(crate) fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill")
        .args(["-s", name, &child.id().to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
}
