//! A workspace, a home directory and a launcher, and commands that run confined in them.

use std::{
    fs,
    io::Read,
    os::{
        fd::OwnedFd,
        unix::{
            fs::{PermissionsExt, lchown},
            net::UnixStream,
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::OnceLock,
};

use bub_sandbox::{Confinement, Launcher, SUBCOMMAND, SandboxProfile};
use tempfile::TempDir;

/// A user without rights, as Debian has it.
const OTHER_USER: u32 = 65534;

/// Where commands find programs.
const SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

/// Directories of one test. The secret is in the home directory.
pub(crate) struct SandboxFixture {
    root: TempDir,
    user: Option<u32>,
    /// Further variables of all commands.
    pub(crate) variables: Vec<(&'static str, String)>,
}

/// A supervisor and its command.
pub(crate) struct Supervised {
    pub(crate) control: UnixStream,
    pub(crate) child: Child,
}

/// The secret that no confined command may read.
pub(crate) const SECRET: &str = "canary-4711";

impl SandboxFixture {
    /// Returns a fixture for the current user and, if that is root, one for a user without rights.
    pub(crate) fn for_each_user() -> Vec<Self> {
        let is_root = rustix::process::getuid().is_root();
        let other = is_root.then_some(Some(OTHER_USER));
        std::iter::once(None).chain(other).map(Self::new).collect()
    }

    fn new(user: Option<u32>) -> Self {
        // Not below `/tmp`, which a confined command does not see.
        let root = tempfile::Builder::new()
            .prefix("bub-sandbox-")
            .tempdir_in("/var/lib");
        let root = root.or_else(|_| TempDir::new()).unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let variables = Vec::new();
        let fixture = Self {
            root,
            user,
            variables,
        };
        for name in [
            "home",
            "home/work",
            "home/work/.git",
            "home/work/.git/hooks",
            "temp",
            "outside",
            "records",
        ] {
            fs::create_dir(fixture.path(name)).unwrap();
        }
        for (name, text) in [
            ("home/secret", SECRET),
            ("home/work/.git/config", "[core]\n"),
            ("home/work/.env", "A=1\n"),
            ("home/work/file", "text\n"),
            ("outside/file", SECRET),
        ] {
            fs::write(fixture.path(name), text).unwrap();
        }
        fixture.give_home();
        if let Some(user) = user {
            give(&fixture.path("temp"), user);
            give(&fixture.path("outside"), user);
            give(&fixture.path("records"), user);
        }
        fixture
    }

    /// Makes the user the owner of all files in the home directory.
    pub(crate) fn give_home(&self) {
        if let Some(user) = self.user {
            give(&self.path("home"), user);
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn confinement(&self, profile: SandboxProfile) -> Confinement {
        let (workspace, temp) = (self.path("home/work"), self.path("temp"));
        let variable = |name: &str| {
            let mut variables = self.variables.iter();
            let found = variables.find(|(known, _)| *known == name);
            match name {
                "HOME" => Some(self.path("home").into()),
                "PATH" => Some(SEARCH_PATH.into()),
                _ => found.map(|(_, value)| value.into()),
            }
        };
        let confinement = Confinement::from_environment(profile, &workspace, &temp, variable);
        let mut confinement = confinement.unwrap();
        confinement.records = Some(self.path("records"));
        confinement
    }

    /// Runs a script in `bash`, confined, in the workspace.
    pub(crate) fn run(&self, confinement: &Confinement, script: &str) -> Output {
        let mut command = confinement.command(&launcher(), "bash").unwrap();
        command.arg("-c").arg(script);
        self.output(&mut command)
    }

    /// Runs a script in `bash`, confined, in `directory`.
    pub(crate) fn run_in(
        &self,
        directory: &Path,
        confinement: &Confinement,
        script: &str,
    ) -> Output {
        let mut command = confinement.command(&launcher(), "bash").unwrap();
        command.arg("-c").arg(script);
        let command = self.prepare(&mut command).current_dir(directory);
        command.output().unwrap()
    }

    /// Runs a script in `bash` under the supervisor, confined, and returns the supervisor's reports.
    pub(crate) fn supervise(&self, confinement: &Confinement, script: &str) -> String {
        let mut supervised = self.start_supervised(confinement, script);
        let mut reports = String::new();
        supervised.control.read_to_string(&mut reports).unwrap();
        supervised.child.wait().unwrap();
        reports
    }

    /// Starts a script in `bash` under the supervisor, confined. Its stdout is a pipe.
    pub(crate) fn start_supervised(&self, confinement: &Confinement, script: &str) -> Supervised {
        let (control, supervisor_control) = UnixStream::pair().unwrap();
        let mut command = Command::new(launcher().0);
        command.arg(SUBCOMMAND).args(confinement.to_args().unwrap());
        command.args(["/bin/bash", script]);
        command
            .stdin(OwnedFd::from(supervisor_control))
            .stdout(Stdio::piped());
        let child = self.prepare(&mut command).spawn().unwrap();
        Supervised { control, child }
    }

    /// Starts a script in `bash`, confined, as the child of a process that waits for it.
    pub(crate) fn start_below_shell(&self, confinement: &Confinement, script: &str) -> Child {
        let confined = confinement.command(&launcher(), "bash").unwrap();
        let mut command = Command::new("python3");
        command.args([
            "-c",
            "import signal, subprocess, sys\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\nsubprocess.call(sys.argv[1:])",
        ]);
        command
            .arg(confined.get_program())
            .args(confined.get_args());
        command.arg("-c").arg(script).stdout(Stdio::piped());
        self.prepare(&mut command).spawn().unwrap()
    }

    /// Runs a script in `bash` without confinement, in the workspace.
    pub(crate) fn run_outside(&self, script: &str) -> Output {
        let mut command = Command::new("bash");
        self.output(command.arg("-c").arg(script))
    }

    fn output(&self, command: &mut Command) -> Output {
        self.prepare(command).output().unwrap()
    }

    fn prepare<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env_clear()
            .env("PATH", SEARCH_PATH)
            .env("HOME", self.path("home"))
            .envs(self.variables.iter().cloned())
            .current_dir(self.path("home/work"));
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }
}

/// Returns the launcher, copied to where every user can execute it.
///
/// All tests share one copy, because a process that another thread forks while the file is written makes it busy.
pub(crate) fn launcher() -> Launcher {
    static COPY: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = COPY.get_or_init(|| {
        let directory = TempDir::new().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let examples = std::env::current_exe().unwrap();
        let examples = examples.parent().unwrap().parent().unwrap();
        let path = directory.path().join("launcher");
        fs::copy(examples.join("examples/launcher"), &path).unwrap();
        (directory, path)
    });
    Launcher(path.clone())
}

/// Makes `user` the owner of a directory and all it contains.
fn give(path: &Path, user: u32) {
    lchown(path, Some(user), Some(user)).unwrap();
    if path.is_dir() && !path.is_symlink() {
        for entry in fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path(), user);
        }
    }
}
