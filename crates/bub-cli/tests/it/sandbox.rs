//! A fresh home and workspace, and the programs run in them.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use tempfile::TempDir;

/// A home and a workspace of their own, gone after the test.
pub(crate) struct Sandbox {
    dir: TempDir,
}

/// Whether whoever runs the tests has a signal ignored, as `nohup` and shells in the background do: so do the programs
/// that the tests start.
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

/// The signals that end a program in order, by name, with their exit codes.
pub(crate) fn ending_signals() -> Vec<(&'static str, i32)> {
    let hangup = (!is_ignored(1)).then_some(("HUP", 129));
    [("TERM", 143), ("QUIT", 131)]
        .into_iter()
        .chain(hangup)
        .collect()
}

/// What a program came to.
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

    /// Writes a file below the sandbox, with its directories.
    pub(crate) fn write(&self, path: &str, content: &str) {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// The text of the one tape there is.
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

    /// A command in the workspace with an environment that holds nothing but the home.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.workspace())
            .env_clear()
            .env("BUB_HOME", self.home())
            .env("HOME", self.dir.path())
            // What runs on the computer of whoever runs the tests is no part of them.
            .env("BUB_LOCAL_MODELS", "false")
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn bub<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Run {
        Run::of(self.command(&bub()).args(args).output().unwrap())
    }

    pub(crate) fn example<S: AsRef<OsStr>>(
        &self,
        name: &str,
        args: impl IntoIterator<Item = S>,
    ) -> Run {
        Run::of(self.command(&example(name)).args(args).output().unwrap())
    }
}

impl Run {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The output of a run that must have succeeded.
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }
}

pub(crate) fn bub() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_bub"))
}

/// An example of this package; cargo builds them all before it runs integration tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let path = bub().parent().unwrap().join("examples").join(name);
    assert!(
        path.exists(),
        "{} is not built; run the tests with `cargo test`",
        path.display()
    );
    path
}

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Sends a signal to a child that was started here.
pub(crate) fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill")
        .args(["-s", name, &child.id().to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
}
